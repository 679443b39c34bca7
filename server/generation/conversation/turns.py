"""Turns of a conversation, in the format of chat templates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

import msgspec
from numaserve.server.generation.conversation.content import Content, characters, joined
from numaserve.server.generation.conversation.images import Image, ImagePart, image_part
from numaserve.server.generation.conversation.messages import Conversation

Turn = dict[str, Any]
_THOUGHT = ("reasoning_content", "thinking")  # the second one is the name in gpt-oss' template


class TextPart(Protocol):
    """A text part of a content, in the format of an API surface."""

    @property
    def text(self) -> str:
        """The text."""


def text_of(content: str | Iterable[TextPart] | None) -> str:
    """Return the text of a content: one line for each part, as in vLLM and llama-server."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content or ())


def content_of(content: str | Iterable[TextPart | ImagePart] | None, param: str) -> Content:
    """Return a content of texts and images, which the field `param` has; the images are in their parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return joined(
        [
            [image_part(part.image(f"{param}[{index}]"))] if isinstance(part, ImagePart) else part.text
            for index, part in enumerate(content)
        ]
    )


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
    together: list[Turn] = []
    for role, group in groupby(turns, key=itemgetter("role")):
        neighbours = list(group)
        together += [_joined(neighbours)] if role in roles else neighbours
    return together


def conversation_from(turns: list[Turn], images: list[Image]) -> Conversation:
    """Return the conversation of `turns`, whose parts for images stand for `images`."""
    needs_tools = any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns)
    return Conversation(turns, sum(map(_characters, turns)), needs_tools, images)


def with_system(system: str | None, conversation: Conversation) -> Conversation:
    """Return the conversation with a system message before it."""
    if not system:
        return conversation
    messages = [{"role": "system", "content": system}, *conversation.messages]
    return msgspec.structs.replace(conversation, messages=messages, characters=len(system) + conversation.characters)


def _joined(turns: Sequence[Turn]) -> Turn:
    """Join turns of one role, all at once: one by one, thousands of turns would be copied thousands of times."""
    whole = {**turns[0]}
    for name in ("content", *_THOUGHT):
        if contents := [turn[name] for turn in turns if turn.get(name)]:
            whole[name] = joined(contents)
    if calls := [call for turn in turns for call in turn.get("tool_calls", ())]:
        whole["tool_calls"] = calls
    return whole


def _characters(turn: Turn) -> int:
    calls = turn.get("tool_calls")
    written = len(json.dumps(calls, ensure_ascii=False)) if calls else 0
    return characters(turn["content"]) + len(turn.get(_THOUGHT[0], "")) + written
