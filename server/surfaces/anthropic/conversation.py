"""The conversion of messages with blocks to the conversation that chat templates take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from numaserve.server.generation.conversation.images import image_part, taken_out
from numaserve.server.generation.conversation.messages import MAX_MESSAGES, Conversation
from numaserve.server.generation.conversation.turns import (
    Turn,
    assistant_turn,
    content_of,
    conversation_from,
    join_neighbours,
    text_of,
)
from numaserve.server.http.fields.types import Strict, conflict, made_of
from numaserve.server.surfaces.anthropic.blocks import (
    Blocks,
    Content,
    DocumentBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from numaserve.server.surfaces.image_parts import AnthropicImage
from pydantic import Field, model_validator

_BLOCKS = {
    "user": frozenset({"text", "document", "search_result", "tool_result", "image"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
    "system": frozenset({"text"}),
}


class InputMessage(Strict):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system"]
    """Author of the message. `system` gives instructions in the middle of the conversation."""
    content: Content
    """Content of the message, as a string or a list of blocks. Every role can send `text`; the user also `image`,
    `document`, `search_result` and `tool_result`; the assistant also `thinking` and `tool_use`."""

    @model_validator(mode="after")
    def _blocks_fit_the_role(self) -> InputMessage:
        for block in self.blocks:
            kind = "image" if isinstance(block, AnthropicImage) else block.type
            if kind not in _BLOCKS[self.role]:
                allowed = ", ".join(sorted(_BLOCKS[self.role]))
                message = f"a message with the role '{self.role}' cannot contain a block of the type '{kind}'"
                raise conflict("content", f"{message}; allowed types are {allowed}")
        return self

    @property
    def blocks(self) -> Blocks:
        """The content as blocks."""
        return self.content if isinstance(self.content, list) else [TextBlock(type="text", text=self.content)]


def _conversation(messages: list[InputMessage]) -> Conversation:
    """Return the conversation; neighbouring messages of one role are one turn, as in Anthropic's API."""
    names = {block.id: block.name for message in messages for block in message.blocks if block.type == "tool_use"}
    given = (turn for index, message in enumerate(messages) for turn in _turns(message, names, f"messages[{index}]"))
    turns = join_neighbours(given, {"user", "assistant", "system"})
    return conversation_from(turns, taken_out(turns))


def _turns(message: InputMessage, names: Mapping[str, str], param: str) -> Iterator[Turn]:
    return _assistant_turns(message) if message.role == "assistant" else _input_turns(message, names, param)


def _input_turns(message: InputMessage, names: Mapping[str, str], param: str) -> Iterator[Turn]:
    for index, block in enumerate(message.blocks):
        where = f"{param}.content[{index}]"
        if isinstance(block, ToolResultBlock):
            content = content_of(block.content, f"{where}.content")
            result = {"role": "tool", "content": content, "tool_call_id": block.tool_use_id}
            name = names.get(block.tool_use_id)
            yield result if name is None else {**result, "name": name}
        elif isinstance(block, AnthropicImage):
            yield {"role": message.role, "content": [image_part(block.image(where))]}
        elif isinstance(block, TextBlock | DocumentBlock | SearchResultBlock):
            yield {"role": message.role, "content": block.text}


def _assistant_turns(message: InputMessage) -> Iterator[Turn]:
    blocks = message.blocks
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    thought = "\n".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    yield assistant_turn(text_of([block for block in blocks if isinstance(block, TextBlock)]), thought, calls)


Messages = Annotated[
    Conversation,
    made_of(Annotated[list[InputMessage], Field(min_length=1, max_length=MAX_MESSAGES)], _conversation),
]
