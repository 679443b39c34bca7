"""Results of measurements: a row of figures, with the fraction of the ceiling that it reaches."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from numaserve.workers.interface.protocol import Ceilings

Figure = str | int | float | None
_CONFIRMED, _NEAR = 3, 1.02
_LEAST_SHARE = 0.06


@dataclass(frozen=True)
class Row:
    """A result: `what` names the case, `figures` has the measurements. Units are in the names: `_ms`, `_us`, `_s`,
    `gb_s`; a figure whose name begins with `of_` or `share_` is a fraction."""

    table: str
    what: dict[str, str | int]
    figures: dict[str, Figure]


Rows = Iterator[Row]


@dataclass(frozen=True)
class Times:
    """Seconds that repetitions of the same work took."""

    best: float
    median: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Times":
        """Return the summary of some repetitions."""
        return cls(min(seconds), statistics.median(seconds))

    def per(self, count: float) -> "Times":
        """Return the time of one of `count` equal parts."""
        return Times(self.best / count, self.median / count)


@dataclass(frozen=True)
class Limits:
    """The ceilings that rows are compared with, and by format the peaks of random operands and of the nest of a large
    product, in operations per second.

    Peaks among the ceilings are of equal operands: zeros where there are tiles. The clock falls while a processor
    multiplies random numbers, so no product of a model reaches them. The nest is measured on one thread, and counts
    for each thread; without tile registers there is none.
    """

    ceilings: Ceilings
    random_flops_s: Mapping[str, float]
    nest_flops_s: Mapping[str, float] = field(default_factory=dict)

    def better(self, other: "Limits") -> "Limits":
        """Return the best of two measurements of the same formats."""
        random = {format: max(peak, other.random_flops_s[format]) for format, peak in self.random_flops_s.items()}
        nest = {format: max(peak, other.nest_flops_s[format]) for format, peak in self.nest_flops_s.items()}
        return Limits(self.ceilings.better(other.ceilings), random, nest)


@dataclass(frozen=True)
class Work:
    """The minimum to read (bytes) and to compute (operations, in `format`)."""

    nbytes: float = 0.0
    flops: float = 0.0
    format: str = "bf16"

    def bound(self, ceilings: Ceilings) -> tuple[float, str]:
        """Return the minimum seconds, and whether reading or computing takes them."""
        read, compute = self.nbytes / ceilings.read_rate, self.flops / ceilings.flops_s[self.format]
        return max((read, "read"), (compute, "flops"))


def timed_row(table: str, what: dict[str, str | int], times: Times, work: Work, limits: Limits) -> Row:
    """Return the row of repeated work."""
    figures: dict[str, Figure] = {"best_us": times.best * 1e6, "median_us": times.median * 1e6}
    figures["gb_s"] = work.nbytes / times.best / 1e9 if work.nbytes else None
    figures["gflop_s"] = work.flops / times.best / 1e9 if work.flops else None
    figures |= of_ceiling(times, work, limits.ceilings)
    if work.flops and work.format in limits.random_flops_s:
        figures["of_random"] = work.flops / times.best / limits.random_flops_s[work.format]
    if work.flops and work.format in limits.nest_flops_s:
        of_thread = work.flops / times.best / limits.ceilings.threads
        figures["of_nest"] = of_thread / limits.nest_flops_s[work.format]
    return Row(table, what, figures)


def of_ceiling(times: Times, work: Work, ceilings: Ceilings) -> dict[str, Figure]:
    """Return the figures of the bound of repeated work."""
    bound, ceiling = work.bound(ceilings)
    return {"ceiling": ceiling, "of_ceiling": bound / times.best, "of_ceiling_median": bound / times.median}


@dataclass(frozen=True)
class Effort:
    """The repetitions of rows: until the best time of each is confirmed, within `seconds` and `most` rounds.

    A best time is confirmed when `_CONFIRMED` rounds lie within `_NEAR` of it. On a quiet machine the first rounds do
    that; they last `_LEAST_SHARE` of `seconds` nevertheless, because other load comes and goes within milliseconds.
    """

    seconds: float = 0.5
    least: int = 2
    most: int = 200

    def repeat(self, work: Callable[[], Sequence[float]]) -> list[Times]:
        """Repeat `work`, which returns the seconds that count for each of some rows."""
        begin, rounds = time.perf_counter(), [work()]
        while len(rounds) < self.least or not self._suffice(rounds, time.perf_counter() - begin):
            rounds.append(work())
        return [Times.of(seconds) for seconds in zip(*rounds, strict=True)]

    def rounds(self, rows: int = 1) -> Iterator[int]:
        """Yield the rounds, counted, in each of which each of some rows is measured once."""
        end = time.perf_counter() + self.seconds * rows
        done = 0
        while done < self.least or (time.perf_counter() < end and done < self.most):
            yield done
            done += 1

    def _suffice(self, rounds: Sequence[Sequence[float]], spent_s: float) -> bool:
        if spent_s >= self.seconds or len(rounds) >= self.most:
            return True
        return spent_s >= _LEAST_SHARE * self.seconds and all(map(_confirmed, zip(*rounds, strict=True)))


def _confirmed(seconds: Sequence[float]) -> bool:
    return sum(each <= _NEAR * min(seconds) for each in seconds) >= _CONFIRMED
