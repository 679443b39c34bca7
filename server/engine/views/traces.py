"""What a trace tells of a sequence. Who makes spans of it is not known here."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from numaserve.server.common.finish_reasons import FinishReason

# The `traceparent` of the request that the present task serves; empty where there is none, or nobody traces.
TRACE_PARENT: ContextVar[str] = ContextVar("trace_parent", default="")


@dataclass(frozen=True)
class SequenceTrace:
    """A sequence that has ended. Times are of the engine's clock, in seconds; None: it did not come so far."""

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
