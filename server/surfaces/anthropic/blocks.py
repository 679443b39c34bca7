"""The content blocks of messages, as Anthropic's clients send them."""

from __future__ import annotations

from typing import Annotated, Literal

from numaserve.server.generation.conversation.turns import text_of
from numaserve.server.http.fields.typed import only_types, tag_of, text_or_list
from numaserve.server.http.fields.types import Data, ShortText, Strict, Text, Unused
from numaserve.server.surfaces.image_parts import IMAGE_TYPES, AnthropicImage, image_or_type
from pydantic import Discriminator, Field, Tag

_MAX_BLOCKS = 16384
_UNSERVED_SOURCES = dict.fromkeys(("base64", "file", "url"), "non-text documents")


class TextBlock(Strict):
    """A block of text."""

    type: Literal["text"]
    text: Text
    cache_control: Unused = None  # prefixes are always cached
    citations: Unused = None


_Text = Annotated[TextBlock, only_types(("text",))]
Texts = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[list[_Text], Field(max_length=_MAX_BLOCKS), Tag("[list]")],
    Discriminator(text_or_list),
]


class TextSource(Strict):
    """A document given as a string."""

    type: Literal["text"]
    media_type: Literal["text/plain"] | None = None
    data: Text

    @property
    def text(self) -> str:
        """The document's text."""
        return self.data


class ContentSource(Strict):
    """A document given as text blocks."""

    type: Literal["content"]
    content: Texts

    @property
    def text(self) -> str:
        """The document's text."""
        return text_of(self.content)


class DocumentBlock(Strict):
    """A document; the model receives its title, context and text as text."""

    type: Literal["document"]
    source: Annotated[
        Annotated[TextSource, Tag("[text]")] | Annotated[ContentSource, Tag("[content]")],
        Discriminator(tag_of()),
        only_types(("text", "content"), _UNSERVED_SOURCES),
    ]
    title: Text | None = None
    context: Text | None = None
    cache_control: Unused = None
    citations: Unused = None

    @property
    def text(self) -> str:
        """The text for the model."""
        return "\n".join(filter(None, (self.title, self.context, self.source.text)))


class SearchResultBlock(Strict):
    """A search result; the model receives it as text."""

    type: Literal["search_result"]
    source: Text
    title: Text
    content: Annotated[list[_Text], Field(max_length=_MAX_BLOCKS)]
    cache_control: Unused = None
    citations: Unused = None

    @property
    def text(self) -> str:
        """The text for the model."""
        return "\n".join((self.title, self.source, text_of(self.content)))


class ToolReferenceBlock(Strict):
    """The name of a tool that a tool search found; the request defines the tool."""

    type: Literal["tool_reference"]
    tool_name: ShortText
    cache_control: Unused = None

    @property
    def text(self) -> str:
        """The text for the model."""
        return self.tool_name


_Input = (
    Annotated[TextBlock, Tag("[text]")]
    | Annotated[DocumentBlock, Tag("[document]")]
    | Annotated[SearchResultBlock, Tag("[search_result]")]
    | Annotated[AnthropicImage, Tag("[image]")]
)
_ResultBlock = Annotated[
    _Input | Annotated[ToolReferenceBlock, Tag("[tool_reference]")],
    Discriminator(image_or_type),
    only_types(("text", "document", "search_result", "tool_reference", "image"), confused=IMAGE_TYPES),
]
_Result = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[list[_ResultBlock], Field(max_length=_MAX_BLOCKS), Tag("[list]")],
    Discriminator(text_or_list),
]


class ThinkingBlock(Strict):
    """The thinking of an earlier response, for chat templates that render it."""

    type: Literal["thinking"]
    thinking: Text
    signature: Unused = None
    cache_control: Unused = None


class RedactedThinkingBlock(Strict):
    """Encrypted thinking from another server; the server drops it."""

    type: Literal["redacted_thinking"]
    data: Unused = None
    cache_control: Unused = None


class ToolUseBlock(Strict):
    """A tool call of an earlier response."""

    type: Literal["tool_use"]
    id: ShortText
    name: ShortText
    input: Data
    cache_control: Unused = None
    caller: Unused = None


class ToolResultBlock(Strict):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: ShortText
    content: _Result | None = None
    is_error: bool | None = None
    """No effect: chat templates have no field for errors."""
    cache_control: Unused = None


_BLOCKS = ("text", "document", "search_result", "image", "thinking", "redacted_thinking", "tool_use", "tool_result")
Block = Annotated[
    _Input
    | Annotated[ThinkingBlock, Tag("[thinking]")]
    | Annotated[RedactedThinkingBlock, Tag("[redacted_thinking]")]
    | Annotated[ToolUseBlock, Tag("[tool_use]")]
    | Annotated[ToolResultBlock, Tag("[tool_result]")],
    Discriminator(image_or_type),
    only_types(_BLOCKS, confused=IMAGE_TYPES),
]
Blocks = Annotated[list[Block], Field(min_length=1, max_length=_MAX_BLOCKS)]
Content = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[Blocks, Tag("[list]")],
    Discriminator(text_or_list),
]
