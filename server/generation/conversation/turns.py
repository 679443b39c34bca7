"""Turns of a conversation, in the format of chat templates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

from numaserve.server.generation.conversation.messages import Conversation

Turn = dict[str, Any]
_THOUGHT = ("reasoning_content", "thinking")  # the second one is the name in gpt-oss' template


# A placeholder for an image that a tool has returned. A refusal would end the conversation, whose history keeps the
# image.
IMAGE_LEFT_OUT = "[An image, which this server does not show to the model.]"


class TextPart(Protocol):
    """A text part of a content, in the format of an API surface."""

    @property
    def text(self) -> str:
        """The text."""


def text_of(content: str | Iterable[TextPart] | None) -> str:
    """Return the text of a content: one line for each part, as in vLLM and llama-server."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content or ())


def assistant_turn(content: str = "", thought: str = "", calls: Sequence[dict[str, Any]] = ()) -> Turn:
    """Return a turn of the assistant."""
    turn: Turn = {"role": "assistant", "content": content}
    if thought:
        turn |= dict.fromkeys(_THOUGHT, thought)
    if calls:
        turn["tool_calls"] = list(calls)
    return turn


def join_neighbours(turns: Iterable[Turn], roles: AbstractSet[str]) -> list[Turn]:
    """Return the turns with adjacent turns of one of `roles` joined, each text on its own line."""
    joined: list[Turn] = []
    for role, group in groupby(turns, key=itemgetter("role")):
        neighbours = list(group)
        joined += [_joined(neighbours)] if role in roles else neighbours
    return joined


def conversation_from(turns: list[Turn]) -> Conversation:
    """Return the conversation of `turns`."""
    needs_tools = any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns)
    return Conversation(turns, sum(map(_characters, turns)), needs_tools)


def with_system(system: str | None, conversation: Conversation) -> Conversation:
    """Return the conversation with a system message before it."""
    if not system:
        return conversation
    messages = [{"role": "system", "content": system}, *conversation.messages]
    return Conversation(messages, len(system) + conversation.characters, conversation.needs_tools)


def _joined(turns: Sequence[Turn]) -> Turn:
    """Join turns of one role, all at once: one by one, thousands of turns would be copied thousands of times."""
    joined = {**turns[0]}
    for name in ("content", *_THOUGHT):
        if texts := [turn[name] for turn in turns if turn.get(name)]:
            joined[name] = "\n".join(texts)
    if calls := [call for turn in turns for call in turn.get("tool_calls", ())]:
        joined["tool_calls"] = calls
    return joined


def _characters(turn: Turn) -> int:
    calls = turn.get("tool_calls")
    written = len(json.dumps(calls, ensure_ascii=False)) if calls else 0
    return len(turn["content"]) + len(turn.get(_THOUGHT[0], "")) + written
