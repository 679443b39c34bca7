"""What a run has seen."""

import itertools
from bisect import bisect_right
from collections import Counter
from dataclasses import asdict, dataclass, field

import numpy as np

from tests.chaos.client import Asked
from tests.chaos.served import Holdings

_SHOWN = 5  # complaints


@dataclass
class Report:
    """Counts and times of a run; see `lines`."""

    seed: int
    seconds: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)  # by kind
    failed: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    deaths: list[float] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    gone: str = ""
    before: Holdings | None = None
    after: Holdings | None = None
    _streams: list[list[float]] = field(default_factory=list)

    def add(self, asked: Asked, complaint: str, *, different: bool) -> None:
        """Take in a request that has ended; without a complaint it has what was expected."""
        self.requests[asked.request.kind] += 1
        if complaint:
            (self.different if different else self.failed).append(f"{asked.index} ({asked.request.kind}): {complaint}")
        if asked.request.streams:
            self._streams.append(asked.arrivals)

    def pauses(self) -> list[float]:
        """Seconds between two events of a stream, for each stream and death between them."""
        found = []
        for arrivals, death in itertools.product(self._streams, self.deaths):
            at = bisect_right(arrivals, death)
            if 0 < at < len(arrivals):
                found.append(arrivals[at] - arrivals[at - 1])
        return found

    def lines(self) -> list[str]:
        """The report as text."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.requests.items()))
        states = ", ".join(f"{name} {count}" for name, count in sorted(self.hits.items()))
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s; again: make chaos SEED={self.seed}",
            f"kills      {len(self.deaths)}",
            f"requests   {self.requests.total()}: {kinds}",
            f"failed     {len(self.failed)}",
            f"different  {len(self.different)}",
            f"states     {states}",
        ]
        if self.missed:
            lines.append(f"missed     {len(self.missed)}: {'; '.join(self.missed[:_SHOWN])}")
        if pauses := self.pauses():
            p50, p99 = np.percentile(pauses, (50, 99))
            lines.append(f"pause      p50 {p50:.2f} s, p99 {p99:.2f} s, of {len(pauses)} streams at a death")
        if self.gone:
            lines.append(f"gone       {self.gone}")
        if self.before and self.after:
            after = asdict(self.after)
            lines += [f"{name:<18} {value:10.1f} -> {after[name]:10.1f}" for name, value in asdict(self.before).items()]
        return lines + [f"! {text[:400]}" for text in (self.failed[:_SHOWN] + self.different[:_SHOWN])]
