"""The figures of a server's speculative decoding (`--speculative`), from the counters that the server exports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_GENERATED = "numaserve_generation_tokens_total"
_DRAFTED = "numaserve_draft_tokens_total"


@dataclass(frozen=True)
class Speculation:
    """The generated tokens and verified draft tokens of a server, since its start or between two times."""

    generated: int
    accepted: int
    rejected: int

    @property
    def verified(self) -> int:
        """The number of verified draft tokens."""
        return self.accepted + self.rejected

    @property
    def tokens_per_step(self) -> float | None:
        """The mean number of tokens per sequence and step; None if nothing was generated.

        A step samples one token after its accepted draft tokens: the number of steps is generated minus accepted.
        """
        steps = self.generated - self.accepted
        return self.generated / steps if steps > 0 else None

    @property
    def acceptance(self) -> float | None:
        """The acceptance rate of draft tokens; None without draft tokens."""
        return self.accepted / self.verified if self.verified else None

    def since(self, before: Speculation) -> Speculation | None:
        """Return the difference to `before`; None if the server was restarted since then."""
        counts = self.generated - before.generated, self.accepted - before.accepted, self.rejected - before.rejected
        return Speculation(*counts) if min(counts) >= 0 else None


def speculation_of(metrics: Iterable[str]) -> Speculation | None:
    """Return the counts since the server's start, over all drafters and models, from its lines of metrics.

    Returns None if the metrics lack them.
    """
    # Lines of other metrics are skipped, because they may have any form.
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
