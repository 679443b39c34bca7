"""The common parts of chat and text completions: id and frame of an answer, usage, events."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field

import msgspec
from numaserve.server.generation.chosen import answering_name
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.generation import Generation, Usage
from numaserve.server.http.errors import ApiError
from numaserve.server.surfaces.event_stream import Framing
from numaserve.server.surfaces.openai.errors import error_body
from numaserve.server.surfaces.openai.sampling_fields import SamplingFields


def event(payload: object) -> bytes:
    """Return one server-sent event."""
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


def _error_event(error: ApiError) -> bytes:
    return event(error_body(error))


DONE = "[DONE]"  # the data of the last event
# A comment is a keep-alive message that clients skip.
EVENTS = Framing("text/event-stream", event, _error_event, ping=b": ping\n\n", end=b"data: %b\n\n" % DONE.encode())


@dataclass(frozen=True)
class Frame:
    """The fields that every object of one answer repeats."""

    id: str
    kind: str
    model: str
    system_fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def new(cls, context: ApiContext, body: SamplingFields, prefix: str, kind: str) -> Frame:
        """Return a frame for the answer to `body`, with a new id, which starts with `prefix`."""
        model = answering_name(context, body.model, body.lora_path)
        return cls(f"{prefix}-{uuid.uuid4().hex}", kind, model, context.system_fingerprint)

    def wrap(self, choices: list[dict[str, object]], **more: object) -> dict[str, object]:
        """Return the JSON object of an answer, or of one chunk."""
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            "choices": choices,
            **more,
        }


class StreamUsage:
    """The `usage` of a stream's chunks: null until the last one, or the usage so far in each chunk."""

    def __init__(self, body: SamplingFields, generation: Generation) -> None:
        options = body.stream_options
        self.wanted = options is not None and options.include_usage is True
        self._continuous = options is not None and options.continuous_usage_stats is True
        self._generation = generation

    def of_chunk(self, index: int, *, begins: bool = False) -> dict[str, object]:
        """Return the field for a chunk of sequence `index`; the chunk that `begins` it has no tokens yet."""
        if not self.wanted:
            return {}
        so_far = self._generation.usage_so_far(index, begins=begins) if self._continuous else None
        return {"usage": None if so_far is None else _counts(so_far)}


def usage_body(usage: Usage) -> dict[str, object]:
    """Return OpenAI's `usage` of a whole answer."""
    completion = {"reasoning_tokens": usage.reasoning_tokens}
    if usage.predicted is not None:
        completion["accepted_prediction_tokens"], completion["rejected_prediction_tokens"] = usage.predicted
    return {
        **_counts(usage),
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": completion,
    }


def _counts(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
