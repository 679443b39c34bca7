"""The items of a response, and the events that describe the items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from numaserve.server.answers.tools.types import ToolCallDelta
from numaserve.server.generation.answer.reading import Chunk
from numaserve.server.surfaces.openai.responses.entries import Ids, of_function, output_text
from numaserve.server.surfaces.openai.responses.logprobs import TextLogprobs

Event = dict[str, Any]
_THOUGHT, _TEXT = "reasoning_text", "output_text"


class Output:
    """The items of a growing response, one open at a time. Events are numbered consecutively."""

    def __init__(
        self, ids: Ids, logprobs: TextLogprobs | None = None, functions: Mapping[str, tuple[str, str]] | None = None
    ) -> None:
        """Start without items.

        With `logprobs`, the texts of messages have log-probabilities. `functions` maps the names that the model knows
        to namespaces and names of functions.
        """
        self.items: list[dict[str, Any]] = []
        self._ids = ids
        self._logprobs = logprobs
        self._functions = functions or {}
        self._events = 0
        self._open: object = None  # the open item: the kind of its text, or the number of a call
        self._pieces: list[str] = []

    def event(self, kind: str, **fields: object) -> Event:
        """Return the next event."""
        self._events += 1
        return {"type": f"response.{kind}", "sequence_number": self._events - 1, **fields}

    def of(self, chunk: Chunk) -> Iterator[Event]:
        """Yield the events of a piece of the answer."""
        if self._logprobs is not None:
            self._logprobs.add(chunk.logprobs)
        if chunk.reasoning:
            yield from self._text(_THOUGHT, chunk.reasoning)
        if chunk.text:
            yield from self._text(_TEXT, chunk.text)
        if chunk.tool_calls and self._logprobs is not None:
            self._logprobs.drop()
        for call in chunk.tool_calls:
            yield from self._call(call)

    def finish(self, status: str) -> Iterator[Event]:
        """Yield the end of the answer, with this status.

        An answer without text gets an empty message, because clients take the last item for the answer.
        """
        only_thought = all(item["type"] == "reasoning" for item in self.items)
        if not self.items or (only_thought and status == "completed"):
            yield from self._begin_text(_TEXT)
        yield from self.end(status)

    def end(self, status: str = "completed") -> Iterator[Event]:
        """Yield the end of the open item, with this status."""
        if self._open is None:
            return
        item, whole = self.items[-1], "".join(self._pieces)
        if item["type"] == "function_call":
            item["arguments"] = whole
            yield self._of_item("function_call_arguments.done", name=item["name"], arguments=whole)
        else:
            (part,) = item["content"]
            part["text"] = whole
            more = {"logprobs": part["logprobs"]} if self._open == _TEXT else {}
            yield self._of_item(f"{self._open}.done", content_index=0, text=whole, **more)
            yield self._of_item("content_part.done", content_index=0, part=part)
        item["status"] = status
        self._open = None
        yield self._of_whole("output_item.done", item)

    def _text(self, kind: str, piece: str) -> Iterator[Event]:
        if self._open != kind:
            yield from self._begin_text(kind)
        self._pieces.append(piece)
        entries = [] if self._logprobs is None else self._logprobs.take(piece)
        more = {"logprobs": entries} if kind == _TEXT else {}
        if kind == _TEXT:
            self.items[-1]["content"][0]["logprobs"] += entries
        yield self._of_item(f"{kind}.delta", content_index=0, delta=piece, **more)

    def _begin_text(self, kind: str) -> Iterator[Event]:
        yield from self._begin(kind, self._thought_item() if kind == _THOUGHT else self._message_item())
        yield self._of_item("content_part.added", content_index=0, part=_part(kind))
        self.items[-1]["content"].append(_part(kind))

    def _call(self, call: ToolCallDelta) -> Iterator[Event]:
        # Only the first piece of a call has its id and its name, and only this piece begins an item.
        if self._open != call.call:
            yield from self._begin(call.call, self._call_item(call))
        if call.arguments:
            self._pieces.append(call.arguments)
            yield self._of_item("function_call_arguments.delta", delta=call.arguments)

    def _begin(self, what: object, item: dict[str, Any]) -> Iterator[Event]:
        yield from self.end()
        self._open, self._pieces = what, []
        self.items.append(item)
        # A copy: the item itself continues to grow.
        yield self._of_whole("output_item.added", {**item, **({"content": []} if "content" in item else {})})

    def _of_item(self, kind: str, **fields: object) -> Event:
        return self.event(kind, item_id=self.items[-1]["id"], output_index=len(self.items) - 1, **fields)

    def _of_whole(self, kind: str, item: dict[str, Any]) -> Event:
        return self.event(kind, output_index=len(self.items) - 1, item=item)

    def _thought_item(self) -> dict[str, Any]:
        return self._item("reasoning", summary=[], content=[])

    def _message_item(self) -> dict[str, Any]:
        return self._item("message", role="assistant", content=[])

    def _call_item(self, call: ToolCallDelta) -> dict[str, Any]:
        namespace, name = self._functions.get(call.name or "", (None, call.name or ""))
        return self._item("function_call", call_id=call.id, **of_function(name, namespace), arguments="")

    def _item(self, kind: str, **fields: object) -> dict[str, Any]:
        return {"type": kind, "id": self._ids.of_item(kind), **fields, "status": "in_progress"}


def _part(kind: str) -> dict[str, Any]:
    return output_text("") if kind == _TEXT else {"type": kind, "text": ""}
