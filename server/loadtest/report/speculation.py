"""Guesses of a server (`--speculative`), by the counters that it exports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_GENERATED = "numaserve_generation_tokens_total"
_DRAFTED = "numaserve_draft_tokens_total"


@dataclass(frozen=True)
class Speculation:
    """Tokens that a server has generated, and guesses that it has verified, since it began or between two times."""

    generated: int
    accepted: int
    rejected: int

    @property
    def verified(self) -> int:
        """All guesses."""
        return self.accepted + self.rejected

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a sequence got in a step, on average: all but the right guesses were sampled behind the last one.
        None where nothing was generated."""
        steps = self.generated - self.accepted
        return self.generated / steps if steps > 0 else None

    @property
    def acceptance(self) -> float | None:
        """The fraction of guesses that were right, None of none."""
        return self.accepted / self.verified if self.verified else None

    def since(self, before: Speculation) -> Speculation | None:
        """What has come since then, None where the server has begun anew."""
        counts = self.generated - before.generated, self.accepted - before.accepted, self.rejected - before.rejected
        return Speculation(*counts) if min(counts) >= 0 else None


def speculation_of(metrics: Iterable[str]) -> Speculation | None:
    """What a server with these lines of metrics has guessed since it began, by all drafters and for all models; None
    where they do not say."""
    # Others' lines are left out: they may be whatever they want.
    lines = [line for line in metrics if line.startswith((_GENERATED, _DRAFTED))]
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
        samples = [
            (sample.name, sample.labels.get("outcome"), int(sample.value))
            for each in families
            for sample in each.samples
        ]
    except (ValueError, OverflowError):
        return None
    if {name for name, _, _ in samples} != {_GENERATED, _DRAFTED}:
        return None
    kinds = (_GENERATED, None), (_DRAFTED, "accepted"), (_DRAFTED, "rejected")
    return Speculation(*(sum(count for *kind, count in samples if tuple(kind) == wanted) for wanted in kinds))
