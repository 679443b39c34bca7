"""The trace of a sequence, independent of the spans that a tracer makes of it."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from numaserve.server.common.finish_reasons import FinishReason

# The `traceparent` of the request that the current task serves; empty without one, or when tracing is off.
TRACE_PARENT: ContextVar[str] = ContextVar("trace_parent", default="")


@dataclass(frozen=True)
class SequenceTrace:
    """A sequence that has ended. Times are in seconds of the engine's clock; None: the stage was not reached."""

    request_id: str
    parent: str
    admitted: float
    scheduled: float | None
    first_token: float | None
    ended: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reason: FinishReason


TraceSink = Callable[[SequenceTrace], None]
