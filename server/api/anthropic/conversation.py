"""Messages of blocks, as a conversation that chat templates know."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from numaserve.server.api.anthropic.blocks import (
    Blocks,
    Content,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    text_of,
)
from numaserve.server.api.conversation import MAX_MESSAGES, Conversation
from numaserve.server.api.fields import Strict, conflict, made_of
from pydantic import Field, model_validator

_THOUGHT = ("reasoning_content", "thinking")  # the second one is the name in gpt-oss' template
_OF_A_USER = frozenset({"text", "tool_result"})
_OF_THE_ASSISTANT = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})


class InputMessage(Strict):
    """One message."""

    role: Literal["user", "assistant"]
    """Who speaks."""
    content: Content
    """A text, or a list of blocks: `text`; of the user `tool_result`; of the assistant `thinking` and `tool_use`."""

    @model_validator(mode="after")
    def _blocks_fit_the_role(self) -> InputMessage:
        allowed = _OF_A_USER if self.role == "user" else _OF_THE_ASSISTANT
        for block in self.blocks:
            if block.type not in allowed:
                raise conflict("content", "a message of this role has no blocks of the type '" + block.type + "'")
        return self

    @property
    def blocks(self) -> Blocks:
        """The content as blocks."""
        return self.content if isinstance(self.content, list) else [TextBlock(type="text", text=self.content)]


def _conversation(messages: list[InputMessage]) -> Conversation:
    """The conversation; neighbours of one role are one turn, as Anthropic takes them."""
    names = {block.id: block.name for message in messages for block in message.blocks if block.type == "tool_use"}
    turns: list[dict[str, Any]] = []
    for message in messages:
        made = _assistant_turns(message) if message.role == "assistant" else _user_turns(message, names)
        for turn in made:
            if turns and turn["role"] != "tool" and turns[-1]["role"] == turn["role"]:
                _join(turns[-1], turn)
            else:
                turns.append(turn)
    characters = sum(map(_characters, turns))
    return Conversation(turns, characters, any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns))


def with_system(system: str | None, conversation: Conversation) -> Conversation:
    """The conversation behind what the model is told first."""
    if not system:
        return conversation
    messages = [{"role": "system", "content": system}, *conversation.messages]
    return Conversation(messages, len(system) + conversation.characters, conversation.needs_tools)


def _user_turns(message: InputMessage, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    for block in message.blocks:
        if isinstance(block, ToolResultBlock):
            result = {"role": "tool", "content": text_of(block.content), "tool_call_id": block.tool_use_id}
            name = names.get(block.tool_use_id)
            yield result if name is None else {**result, "name": name}
        elif isinstance(block, TextBlock):
            yield {"role": "user", "content": block.text}


def _assistant_turns(message: InputMessage) -> Iterator[dict[str, Any]]:
    blocks = message.blocks
    turn: dict[str, Any] = {"role": "assistant", "content": text_of([b for b in blocks if isinstance(b, TextBlock)])}
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    if thoughts:
        turn |= dict.fromkeys(_THOUGHT, "\n".join(thoughts))
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    if calls:
        turn["tool_calls"] = calls
    yield turn


def _join(turn: dict[str, Any], other: dict[str, Any]) -> None:
    for name in ("content", *_THOUGHT):
        if other.get(name):
            turn[name] = f"{turn[name]}\n{other[name]}" if turn.get(name) else other[name]
    if "tool_calls" in other:
        turn["tool_calls"] = turn.get("tool_calls", []) + other["tool_calls"]


def _characters(turn: dict[str, Any]) -> int:
    calls = turn.get("tool_calls")
    written = len(json.dumps(calls, ensure_ascii=False)) if calls else 0
    return len(turn["content"]) + len(turn.get("reasoning_content", "")) + written


Messages = Annotated[
    Conversation,
    made_of(Annotated[list[InputMessage], Field(min_length=1, max_length=MAX_MESSAGES)], _conversation),
]
