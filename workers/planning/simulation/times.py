"""Time of a step on a host, from the work that its threads were counted to have.

A phase ends when its last thread has finished, and the threads meet. Ranks wait for each other in collectives alone: at
each of them all ranks go on from where the last one arrives.

A sum that overlaps the product before it takes the longer of two times, and the time of one piece of the shorter one:
the first pieces of the product, or the last sums, overlap nothing. One time is that of the link. The other is the time
of a thread, which multiplies, fetches as fast as a core can, and adds. The assumption is that the lanes are spread over
all points of their pieces, which is why first pieces differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal

from numaserve.workers.planning.roofline.efficiency import Efficiencies, peak_format
from numaserve.workers.planning.roofline.phases import RankMachine
from numaserve.workers.planning.simulation.counting import CountedGroup, Phase
from numaserve.workers.planning.simulation.fluid import Rates, handed_out, thread_seconds
from numaserve.workers.program.cost import OperationCost, StepWork

_UNBOUNDED = float("inf")


Bound = Literal["read", "flops", "cores", "ranks"]
# The name of an operation and the format of its weights, on each rank: ranks may cut the groups of a format otherwise.
_Names = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class OperationTime:
    """The time of an operation of a step, or of all operations of one name, on a rank.

    `seconds`: without waiting for ranks that come later. `bound`: what most of them are spent with. `threads`: the mean
    load of a thread over the load of the busiest. `ranks`: the mean time of a rank over that of the slowest. `remote`:
    bytes that the rank reads from other ranks. `barriers` and `meetings`: how often threads and ranks wait for each
    other.
    """

    name: str
    weights: str
    seconds: float
    bound: Bound
    threads: float
    ranks: float
    remote: int
    barriers: int
    meetings: int


@dataclass(frozen=True)
class HostTimes:
    """Times of steps on a host: the rates of its ranks, and the fractions of them that kernels reach."""

    ranks: Sequence[RankMachine]
    efficiencies: Efficiencies
    step_s: float = 0.0  # of a step, outside of its operations

    def of(self, group: CountedGroup, work: StepWork) -> StepTotals:
        """Return the time of a step of the group."""
        counted, costs = group.step(work), group.costs
        by_index = [_by_index(phases) for phases in counted]
        clocks, waited, machine = [0.0] * len(self.ranks), 0.0, self.ranks[0].machine
        found: dict[_Names, _Times] = {}
        before: list[_RankTime] = []
        for index, cost in enumerate(costs[0]):
            if cost is None:
                continue
            ranks = [
                self._rank_time(rank, of_rank[index] or cost, phases.get(index, []), work)
                for rank, of_rank, phases in zip(self.ranks, costs, by_index, strict=True)
            ]
            clocks = [clock + each.seconds for clock, each in zip(clocks, ranks, strict=True)]
            meetings = cost.amount(work).meetings
            if meetings:
                waited += max(clocks) - sum(clocks) / len(clocks)
                exchanged = max(each.remote for each in ranks) / (machine.link_gb_s * 1e9)
                if overlapped := cost.amount(work).overlapped:
                    exchanged -= self._hidden(exchanged, overlapped, before, ranks)
                exchanged += meetings * machine.meeting_us * 1e-6
                ranks = [each.plus(_RankTime({"ranks": exchanged})) for each in ranks]
                clocks = [max(clocks) + exchanged] * len(clocks)
            names = tuple((each.name, each.weights) for each in (of_rank[index] or cost for of_rank in costs))
            own, of_names = _Times(meetings, ranks), found.get(names)
            found[names] = own if of_names is None else of_names.plus(own)
            before = ranks
        return StepTotals(max(clocks) + self.step_s, waited, found)

    def _hidden(
        self, exchanged: float, overlapped: float, products: Sequence[_RankTime], sums: Sequence[_RankTime]
    ) -> float:
        """Return the seconds of an exchange during which threads multiply and add; see the module's documentation."""
        busy = max(product.seconds + each.seconds for product, each in zip(products, sums, strict=True))
        fetching = max(
            each.remote / rank.cores / rank.machine.core_read_bytes_s(rank.read_bytes_s)
            for rank, each in zip(self.ranks, sums, strict=True)
        )
        thread = busy + fetching
        together = max(thread, exchanged) + (1.0 - overlapped) * min(thread, exchanged)
        return max(busy + exchanged - together, 0.0)

    def _rank_time(self, rank: RankMachine, cost: OperationCost, phases: Sequence[Phase], work: StepWork) -> _RankTime:
        rates, total = self._rates(rank, cost, work), _RankTime()
        fixed = self.efficiencies.more_barrier_s(rank.machine.barrier_us * 1e-6)
        if cost.is_row_wise:
            fixed += self.efficiencies.row_time(cost.name).fixed_s
        for phase in phases:
            threads, barriers = list(phase.threads), int(not phase.joins_next)
            if phase.items:
                taken = handed_out(phase.items, len(threads), rates)
                threads = [own.plus(more) for own, more in zip(threads, taken, strict=True)]
            ends = thread_seconds(threads, rates)
            last = max(range(len(ends)), key=ends.__getitem__)
            bound: Bound = "cores" if cost.is_row_wise else "flops"
            if rates.own_seconds(threads[last]) < ends[last]:
                bound = "read"
            remote = sum(each.remote for each in threads)
            total = total.plus(
                _RankTime({bound: ends[last] + barriers * fixed}, sum(ends) / len(ends), ends[last], remote, barriers)
            )
        return total

    def _rates(self, rank: RankMachine, cost: OperationCost, work: StepWork) -> Rates:
        """Return the rates for an operation. What a product reads and writes of activations is part of its
        efficiency."""
        rows, node = cost.amount(work).rows, rank.read_bytes_s
        core = rank.machine.core_read_bytes_s(node)
        if cost.is_row_wise:
            moved = self.efficiencies.row_time(cost.name).core_bytes_s.at(max(rows / rank.cores, 1.0))
            return Rates(node, core, moved, _UNBOUNDED)
        computes = peak_format(cost.kind, cost.weights).partition("/")[0]
        read, flops = (self.efficiencies.of(cost.kind, cost.weights, bound, rows) for bound in ("read", "flops"))
        return Rates(node * read, core * read, _UNBOUNDED, rank.machine.peak(1, computes) * flops)


@dataclass(frozen=True)
class _RankTime:
    """Seconds of an operation on a rank, by what bounds them; those of the mean and of the busiest thread; bytes of
    other ranks; barriers."""

    by_bound: Mapping[Bound, float] = field(default_factory=dict)
    mean_s: float = 0.0
    most_s: float = 0.0
    remote: int = 0
    barriers: int = 0

    @property
    def seconds(self) -> float:
        return sum(self.by_bound.values())

    @property
    def bound(self) -> Bound:
        return max(self.by_bound, key=self.by_bound.__getitem__, default="cores")

    def plus(self, more: _RankTime, times: int = 1) -> _RankTime:
        by_bound = dict(self.by_bound)
        for bound, seconds in more.by_bound.items():
            by_bound[bound] = by_bound.get(bound, 0.0) + times * seconds
        return _RankTime(
            by_bound,
            self.mean_s + times * more.mean_s,
            self.most_s + times * more.most_s,
            self.remote + times * more.remote,
            self.barriers + times * more.barriers,
        )


@dataclass(frozen=True)
class _Times:
    """The times of an operation, or of all operations of one name, on all ranks."""

    meetings: int
    ranks: Sequence[_RankTime]

    def plus(self, more: _Times, times: int = 1) -> _Times:
        ranks = [own.plus(each, times) for own, each in zip(self.ranks, more.ranks, strict=True)]
        return _Times(self.meetings + times * more.meetings, ranks)


@dataclass(frozen=True)
class StepTotals:
    """The time of a step: its seconds, the seconds that the mean rank waits for others, and the times of operations.
    Totals of several programs can be added."""

    seconds: float
    waiting_s: float
    by_names: Mapping[_Names, _Times]

    def plus(self, more: StepTotals, times: int = 1) -> StepTotals:
        """Return the sum with `times` times the other totals, which may be negative."""
        found = dict(self.by_names)
        for key, each in more.by_names.items():
            none = _Times(0, [_RankTime()] * len(each.ranks))
            found[key] = found.get(key, none).plus(each, times)
        return StepTotals(self.seconds + times * more.seconds, self.waiting_s + times * more.waiting_s, found)

    @property
    def busiest(self) -> int:
        """The rank whose operations take longest."""
        ranks = range(len(next(iter(self.by_names.values())).ranks))
        return max(ranks, key=lambda rank: sum(each.ranks[rank].seconds for each in self.by_names.values()))

    def names(self, rank: int) -> set[tuple[str, str]]:
        """Return the names of a rank's operations with the formats of their weights."""
        return {names[rank] for names in self.by_names}

    def operation(self, name: str, weights: str, rank: int) -> OperationTime:
        """Return the time of the operations of a name on a rank. Raises `KeyError` if there are none."""
        times = [each for names, each in self.by_names.items() if names[rank] == (name, weights)]
        if not times:
            raise KeyError(name, weights)
        of_name = reduce(_Times.plus, times)
        own, seconds = of_name.ranks[rank], [each.seconds for each in of_name.ranks]
        return OperationTime(
            name,
            weights,
            own.seconds,
            own.bound,
            threads=own.mean_s / own.most_s if own.most_s else 1.0,
            ranks=sum(seconds) / len(seconds) / max(seconds) if max(seconds) else 1.0,
            remote=own.remote,
            barriers=own.barriers,
            meetings=of_name.meetings,
        )


def _by_index(phases: Sequence[Phase]) -> dict[int, list[Phase]]:
    found: dict[int, list[Phase]] = {}
    for phase in phases:
        found.setdefault(phase.index, []).append(phase)
    return found
