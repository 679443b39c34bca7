"""What a run has seen."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields

import numpy as np

from tests.chaos.client import Asked
from tests.chaos.faults import DRAINING, place_of, states
from tests.chaos.flatness import THIRDS, grown, medians_of_thirds
from tests.chaos.served import Holdings

_SHOWN = 5  # complaints
_SHOWN_CHARS = 400


@dataclass
class Report:
    """Counts and times of a server, or of all of a run."""

    seed: int = 0
    seconds: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)  # by kind
    failed: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    deaths: list[tuple[float, float]] = field(default_factory=list)  # see `Injector`
    restarts: int = 0  # whatever they were for
    hits: Counter[str] = field(default_factory=Counter)  # faults by state
    actions: Counter[str] = field(default_factory=Counter)  # faults by what was done
    hangs: Counter[str] = field(default_factory=Counter)  # by state
    missed: list[str] = field(default_factory=list)  # faults that did not come about
    gone: str = ""  # why the server ended before its time, or not in order
    before: Holdings | None = None
    after: Holdings | None = None
    held: list[Holdings] = field(default_factory=list)  # under load, from time to time
    pauses: list[float] = field(default_factory=list)  # seconds between two events of a stream with a death between
    parts: Sequence["Report"] = ()  # one for each server
    log: str = ""  # of the server
    _streams: list[list[float]] = field(default_factory=list)

    @classmethod
    def of(cls, seed: int, parts: Sequence["Report"]) -> "Report":
        """All servers' together."""
        whole = cls(seed, parts=parts, seconds=max(part.seconds for part in parts))
        for part in parts:
            for name in ("requests", "hits", "actions", "hangs"):
                getattr(whole, name).update(getattr(part, name))
            for name in ("failed", "different", "deaths", "missed"):
                getattr(whole, name).extend(getattr(part, name))
            whole.pauses += part.find_pauses()
            whole.restarts += part.restarts
            whole.gone = whole.gone or part.gone
        return whole

    def add(self, asked: Asked, complaint: str, *, different: bool) -> None:
        """Take in a request that has ended; without a complaint it has what was expected."""
        self.requests[asked.request.kind] += 1
        if complaint:
            (self.different if different else self.failed).append(f"{asked.index} ({asked.request.kind}): {complaint}")
        if asked.request.streams:
            self._streams.append(asked.arrivals)

    def find_pauses(self) -> list[float]:
        """Of each stream at each death, or at several between which it had no event: the longest pause until the
        workers served again, as what was on its way at the death still comes."""
        found = []
        for arrivals in self._streams:
            longest = (_longest_gap(arrivals, *death) for death in self.deaths)
            found += list(dict(each for each in longest if each).values())
        return found

    @property
    def grown(self) -> list[str]:
        """What the servers hold more of than they may."""
        return [text for part in self.parts for text in grown(part.before, part.after, part.held, part.seconds)]

    @property
    def is_good(self) -> bool:
        """Whether nobody noticed anything, nothing grew, and there was a fault in every state."""
        every = {place_of(state) for state in states(pooled=False)} | {DRAINING}
        return not (self.failed or self.different or self.gone or self.grown or every - set(self.hits))

    def lines(self) -> list[str]:
        """The report as text."""
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s; again: make chaos SEED={self.seed}",
            f"kills      {len(self.deaths)} (the workers were started again {self.restarts} times)",
            f"requests   {self.requests.total()}: {_counted(self.requests)}",
            f"failed     {len(self.failed)}",
            f"different  {len(self.different)}",
            f"states     {_counted(self.hits)}",
            f"faults     {_counted(self.actions)}",
            f"hangs      {_counted(self.hangs)}",
        ]
        if self.missed:
            lines.append(f"missed     {len(self.missed)}: {'; '.join(self.missed[:_SHOWN])}")
        if self.pauses:
            p50, p99 = np.percentile(self.pauses, (50, 99))
            lines.append(f"pause      p50 {p50:.2f} s, p99 {p99:.2f} s, of {len(self.pauses)} streams at a death")
        for part in self.parts:
            lines += _held(part)
        if self.grown:
            lines.append(f"grown      {'; '.join(self.grown)}")
        if self.gone:
            lines.append(f"gone       {self.gone}")
        return lines + [f"! {text[:_SHOWN_CHARS]}" for text in (self.failed[:_SHOWN] + self.different[:_SHOWN])]


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items()))


def _held(part: Report) -> list[str]:
    """What a server held at rest before and after, and in the thirds of the time between."""
    lines = []
    if part.before is not None and part.after is not None:
        lines.append(f"at rest    {_told([part.before, part.after], ' -> ')}")
    if len(part.held) >= THIRDS:
        lines.append(f"by thirds  {_told(medians_of_thirds(part.held), ' / ')}, of {len(part.held)} times under load")
    return lines


def _told(held: Sequence[Holdings], separator: str) -> str:
    values = zip(*map(astuple, held), strict=True)
    names = (each.name.replace("_", " ") for each in fields(Holdings))
    return ", ".join(
        f"{name} {separator.join(f'{value:g}' for value in each)}" for name, each in zip(names, values, strict=True)
    )


def _longest_gap(arrivals: list[float], since: float, until: float) -> tuple[int, float] | None:
    """The place and length of the longest pause in a stream that overlaps with a time; None for a stream before it or
    behind it."""
    first, last = bisect_right(arrivals, since), bisect_right(arrivals, until)
    places = [at for at in range(first, last + 1) if 0 < at < len(arrivals)]
    if not places:
        return None
    at = max(places, key=lambda at: arrivals[at] - arrivals[at - 1])
    return at, arrivals[at] - arrivals[at - 1]
