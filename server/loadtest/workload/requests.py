"""The requests of a load, and their outcomes."""

from dataclasses import dataclass, field

Prompt = str | list[int]


@dataclass(frozen=True)
class BenchRequest:
    """One completion to ask for."""

    prompt: Prompt
    input_tokens: int  # as intended; what the server says in `usage` counts
    output_tokens: int
    arrival_s: float | None = None  # after the first one; only where a trace says so


@dataclass
class Outcome:
    """One request as its client saw it, in seconds. `e2e_s` ends at the last token: usage comes after it."""

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
        """Time for each output token after the first; None where there is no second."""
        if self.error is not None or self.output_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)
