"""Turns of a conversation, as chat templates know them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from numaserve.server.api.conversation import Conversation

Turn = dict[str, Any]
_THOUGHT = ("reasoning_content", "thinking")  # the second one is the name in gpt-oss' template


class TextPart(Protocol):
    """A part of a content that is text, as each surface has it."""

    @property
    def text(self) -> str:
        """The text."""


def text_of(content: str | Iterable[TextPart] | None) -> str:
    """The text of a content: its parts are a line each, as vLLM and llama-server write them."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content or ())


def assistant_turn(content: str = "", thought: str = "", calls: Sequence[dict[str, Any]] = ()) -> Turn:
    """A turn of the assistant."""
    turn: Turn = {"role": "assistant", "content": content}
    if thought:
        turn |= dict.fromkeys(_THOUGHT, thought)
    if calls:
        turn["tool_calls"] = list(calls)
    return turn


def join_neighbours(turns: Iterable[Turn], roles: AbstractSet[str]) -> list[Turn]:
    """The turns; neighbours of one of `roles` are one, with their texts a line each."""
    joined: list[Turn] = []
    for turn in turns:
        if joined and turn["role"] in roles and joined[-1]["role"] == turn["role"]:
            joined[-1] = _join(joined[-1], turn)
        else:
            joined.append(turn)
    return joined


def conversation_from(turns: list[Turn]) -> Conversation:
    """The conversation that `turns` are."""
    needs_tools = any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns)
    return Conversation(turns, sum(map(_characters, turns)), needs_tools)


def with_system(system: str | None, conversation: Conversation) -> Conversation:
    """The conversation behind what the model is told first."""
    if not system:
        return conversation
    messages = [{"role": "system", "content": system}, *conversation.messages]
    return Conversation(messages, len(system) + conversation.characters, conversation.needs_tools)


def _join(turn: Turn, other: Turn) -> Turn:
    joined = {**turn}
    for name in ("content", *_THOUGHT):
        if other.get(name):
            joined[name] = f"{turn[name]}\n{other[name]}" if turn.get(name) else other[name]
    if "tool_calls" in other:
        joined["tool_calls"] = turn.get("tool_calls", []) + other["tool_calls"]
    return joined


def _characters(turn: Turn) -> int:
    calls = turn.get("tool_calls")
    written = len(json.dumps(calls, ensure_ascii=False)) if calls else 0
    return len(turn["content"]) + len(turn.get(_THOUGHT[0], "")) + written
