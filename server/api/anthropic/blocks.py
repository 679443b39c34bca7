"""The blocks that messages are made of, as Anthropic's clients send them."""

from __future__ import annotations

from typing import Annotated, Literal

from numaserve.server.api.fields import Data, ShortText, Strict, Text, Unused
from numaserve.server.api.typed import only_types, tag_of, text_or_list
from pydantic import Discriminator, Field, Tag

_MAX_BLOCKS = 16384
_UNSERVED = {"image": "images", "document": "documents", "search_result": "search results"}


class TextBlock(Strict):
    """A text."""

    type: Literal["text"]
    text: Text
    cache_control: Unused = None  # prefixes are always cached
    citations: Unused = None


_Text = Annotated[TextBlock, only_types(("text",), _UNSERVED)]
Texts = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[list[_Text], Field(max_length=_MAX_BLOCKS), Tag("[list]")],
    Discriminator(text_or_list),
]


class ThinkingBlock(Strict):
    """The thought of an earlier answer, for templates that write it."""

    type: Literal["thinking"]
    thinking: Text
    signature: Unused = None
    cache_control: Unused = None


class RedactedThinkingBlock(Strict):
    """A thought that only another server can read; it is left out."""

    type: Literal["redacted_thinking"]
    data: Unused = None
    cache_control: Unused = None


class ToolUseBlock(Strict):
    """A call that an earlier answer made."""

    type: Literal["tool_use"]
    id: ShortText
    name: ShortText
    input: Data
    cache_control: Unused = None
    caller: Unused = None


class ToolResultBlock(Strict):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: ShortText
    content: Texts | None = None
    is_error: bool | None = None
    """Without effect: chat templates have no word for it."""
    cache_control: Unused = None


Block = Annotated[
    Annotated[TextBlock, Tag("[text]")]
    | Annotated[ThinkingBlock, Tag("[thinking]")]
    | Annotated[RedactedThinkingBlock, Tag("[redacted_thinking]")]
    | Annotated[ToolUseBlock, Tag("[tool_use]")]
    | Annotated[ToolResultBlock, Tag("[tool_result]")],
    Discriminator(tag_of()),
    only_types(("text", "thinking", "redacted_thinking", "tool_use", "tool_result"), _UNSERVED),
]
Blocks = Annotated[list[Block], Field(min_length=1, max_length=_MAX_BLOCKS)]
Content = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[Blocks, Tag("[list]")],
    Discriminator(text_or_list),
]
