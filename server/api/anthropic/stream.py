"""The events of an answer, in Anthropic's order, and the message that they make."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
from numaserve.server.api.anthropic.errors import error_body
from numaserve.server.api.errors import ApiError
from numaserve.server.api.event_stream import Framing
from numaserve.server.api.generation.generation import Usage

Event = dict[str, Any]


def _event(payload: object) -> bytes:
    name = payload["type"] if isinstance(payload, dict) else ""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(payload))


def _error_event(error: ApiError) -> bytes:
    return _event(error_body(error))


EVENTS = Framing("text/event-stream", _event, _error_event, ping=_event({"type": "ping"}))


class BlockEvents:
    """The blocks of an answer's content, one open at a time."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None  # what the open block is

    def text(self, piece: str) -> Iterator[Event]:
        """The events of a piece of the answer's text."""
        if piece:
            yield from self._begin("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": piece})

    def end(self) -> Iterator[Event]:
        """The end of the block that is open."""
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}

    def _begin(self, what: str, block: dict[str, object]) -> Iterator[Event]:
        if self._open == what:
            return
        yield from self.end()
        self._open = what
        self._index += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, object]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


async def message_of(events: AsyncIterator[Event]) -> dict[str, Any]:
    """The message that `events` tell of: an answer is the same whole and streamed."""
    message: dict[str, Any] = {}
    pieces: list[list[str]] = []
    async for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"])
                pieces.append([])
            case "content_block_delta":
                pieces[-1].append(event["delta"]["text"])
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    for block, texts in zip(message["content"], pieces, strict=True):
        block["text"] = "".join(texts)
    return message


def usage_body(usage: Usage) -> dict[str, object]:
    """Anthropic's `usage`, whose `input_tokens` are those that did not come from the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
