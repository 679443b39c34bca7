"""The events of an answer, in Anthropic's order, and the message that they describe."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from numaserve.server.generation.answer.reading import Chunk
from numaserve.server.generation.generation import Usage
from numaserve.server.http.errors import ApiError
from numaserve.server.http.fields.json_data import raw_object
from numaserve.server.surfaces.anthropic.errors import error_body
from numaserve.server.surfaces.event_stream import Framing, named_event

Event = dict[str, Any]
# Nothing is signed, but clients drop thoughts without a signature when they send an answer back.
_SIGNATURE = "unsigned"
_NO_OBJECT = "INVALID_JSON"  # the field under which Anthropic's clients find an input that is not an object
# The field that holds the text of each type of delta.
_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_THINKING = "thinking"


def _error_event(error: ApiError) -> bytes:
    return named_event(error_body(error))


EVENTS = Framing("text/event-stream", named_event, _error_event, ping=named_event({"type": "ping"}))


class BlockEvents:
    """The blocks of an answer's content, one open at a time."""

    def __init__(self) -> None:
        self._index = -1
        self._open: object = None  # the open block: a kind, or the number of a call

    def of(self, chunk: Chunk) -> Iterator[Event]:
        """Yield the events of a piece of the answer."""
        if chunk.reasoning:
            yield from self._begin(_THINKING, {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": chunk.reasoning})
        if chunk.text:
            yield from self._begin("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": chunk.text})
        for call in chunk.tool_calls:
            # Only the first piece of a call has its id and its name, and only this piece begins a block.
            yield from self._begin(call.call, {"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
            if call.arguments:
                yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})

    def end(self) -> Iterator[Event]:
        """Yield the end of the open block."""
        if self._open is not None:
            if self._open == _THINKING:
                yield self._delta({"type": "signature_delta", "signature": _SIGNATURE})
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}

    def _begin(self, what: object, block: dict[str, object]) -> Iterator[Event]:
        if self._open == what:
            return
        yield from self.end()
        self._open = what
        self._index += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, object]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


async def message_of(events: AsyncIterator[Event]) -> dict[str, Any]:
    """Return the message that `events` describe: a response is the same with and without streaming."""
    message: dict[str, Any] = {}
    pieces: list[list[str]] = []
    async for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"])
                pieces.append([])
            case "content_block_delta" if event["delta"]["type"] == "signature_delta":
                message["content"][-1]["signature"] = event["delta"]["signature"]
            case "content_block_delta":
                pieces[-1].append(event["delta"][_FIELDS[event["delta"]["type"]]])
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    for block, texts in zip(message["content"], pieces, strict=True):
        kind, whole = block["type"], "".join(texts)
        block.update({"input": raw_object(whole, _NO_OBJECT)} if kind == "tool_use" else {kind: whole})
    return message


def usage_body(usage: Usage) -> dict[str, object]:
    """Return Anthropic's `usage`, whose `input_tokens` are those that did not come from the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
