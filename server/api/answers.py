"""What chat and text completions have in common: identity, model check, the frame of an answer, prompt preparation."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import cast

from fastapi import Request
from numaserve.server.api.access_log import RequestRecord
from numaserve.server.api.context import ApiContext
from numaserve.server.api.errors import context_length_exceeded, model_not_found, not_ready
from numaserve.server.api.schemas import SamplingFields

# No vocabulary has tokens of nearly so many characters on average: a longer text cannot fit, and is refused before it
# keeps the tokenizer busy.
_MAX_CHARACTERS_PER_TOKEN = 256


@dataclass(frozen=True)
class Frame:
    """The fields that every object of one answer repeats."""

    id: str
    kind: str
    model: str
    system_fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def new(cls, context: ApiContext, prefix: str, kind: str) -> Frame:
        """With an id that no other answer has."""
        return cls(f"{prefix}-{uuid.uuid4().hex}", kind, context.model_name, context.system_fingerprint)

    def wrap(self, choices: list[dict[str, object]], **more: object) -> dict[str, object]:
        """An answer, or one chunk of it."""
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            "choices": choices,
            **more,
        }


def wants_usage(body: SamplingFields) -> bool:
    """Whether a stream ends with a chunk of usage."""
    return body.stream_options is not None and body.stream_options.include_usage is True


def record_of(request: Request) -> RequestRecord:
    """The log record that `RequestScope` made."""
    return cast(RequestRecord, request.state.record)


def check_model(context: ApiContext, model: str | None) -> None:
    """Raise `ApiError` 404 for another model than the one served; no model means that one."""
    if model is not None and model not in context.model_names:
        raise model_not_found(model)


def check_servable(context: ApiContext, model: str | None) -> None:
    """Raise `ApiError` before any work is done for a request that cannot be served now."""
    check_model(context, model)
    if not context.engine.is_ready():
        raise not_ready("The server is not ready: it is loading, restarting or shutting down. Try again shortly.")


def check_text_length(context: ApiContext, characters: int, param: str) -> None:
    """Raise `ApiError` for a text so long that it cannot fit whatever its tokens are."""
    limit = context.limits.context_length
    if characters > limit * _MAX_CHARACTERS_PER_TOKEN:
        raise context_length_exceeded(
            f"This model's maximum context length is {limit} tokens; {characters} characters are more than fit.", param
        )
