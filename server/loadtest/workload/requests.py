"""The requests of a load and their outcomes."""

from dataclasses import dataclass, field

Prompt = str | list[int]


@dataclass(frozen=True)
class BenchRequest:
    """A request for one completion."""

    prompt: Prompt
    input_tokens: int  # intended; the server's `usage` takes precedence
    output_tokens: int
    arrival_s: float | None = None  # after the first one; only where a trace says so


@dataclass
class Outcome:
    """The outcome of a request as its client saw it, in seconds. `e2e_s` ends at the last token, before the usage."""

    input_tokens: int
    output_tokens: int = 0
    asked_tokens: int = 0  # output that was asked for
    cached_tokens: int = 0
    ttft_s: float = 0.0
    e2e_s: float = 0.0
    itls_s: list[float] = field(default_factory=list)
    with_usage: bool = False
    status: int | None = None
    error: str | None = None

    @property
    def tpot_s(self) -> float | None:
        """The time per output token after the first; None without a second token."""
        if self.error is not None or self.output_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)
