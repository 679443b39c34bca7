"""Time of a model's steps on a machine: each operation takes its bound, divided by the efficiency of its kernel.

An operation takes the longer of its reading and its computing; operations follow each other. A step takes as long as
the rank with the most work: the others wait for it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from numaserve.workers.planning.roofline.efficiency import Efficiencies, peak_format
from numaserve.workers.planning.roofline.machine import Machine
from numaserve.workers.program.cost import Amount, OperationCost, StepWork

Bound = Literal["read", "flops", "cores", "ranks"]


@dataclass(frozen=True)
class RankMachine:
    """A rank's part of the machine."""

    machine: Machine
    cores: int
    read_bytes_s: float

    def bound_s(self, amount: Amount, computes: str) -> float:
        """Return the minimum seconds of reading or computing."""
        return max(amount.nbytes / self.read_bytes_s, amount.flops / self.machine.peak(self.cores, computes))


@dataclass(frozen=True)
class OperationEstimate:
    """The estimate of an operation, or of all operations of one name, on one rank in some steps."""

    name: str
    weights: str
    calls: int
    nbytes: float
    flops: float
    fetched: float
    seconds: float
    bound_s: float
    bound: Bound


@dataclass(frozen=True)
class PhaseEstimate:
    """The estimate of some steps: the operations of the slowest rank, and the seconds that the steps take."""

    name: str
    steps: int
    rank: int
    costs: list[OperationEstimate]
    seconds: float

    @property
    def nbytes(self) -> float:
        """Bytes of weights and KV cache that the rank reads."""
        return sum(cost.nbytes for cost in self.costs)

    @property
    def bound_s(self) -> float:
        """Seconds of reading and computing at the ceilings."""
        return sum(cost.bound_s for cost in self.costs)


@dataclass(frozen=True)
class Roofline:
    """The roofline model of a group of ranks."""

    ranks: Sequence[RankMachine]
    operations: Sequence[Sequence[OperationCost]]  # by rank
    efficiencies: Efficiencies
    step_s: float = 0.0  # of a step, outside of its operations

    def phase(self, name: str, steps: Sequence[StepWork]) -> PhaseEstimate:
        """Return the estimate of those steps."""
        by_rank = [self._estimates(rank, steps) for rank in range(len(self.ranks))]
        totals = [sum(cost.seconds for cost in costs) for costs in by_rank]
        slowest = max(range(len(totals)), key=totals.__getitem__)
        return PhaseEstimate(name, len(steps), slowest, by_rank[slowest], totals[slowest] + self.step_s * len(steps))

    def _estimates(self, rank: int, steps: Sequence[StepWork]) -> list[OperationEstimate]:
        machine = self.ranks[rank]
        found = [self._estimate(machine, each, step) for step in steps for each in self.operations[rank]]
        found.sort(key=lambda cost: (cost.name, cost.weights))
        merged = [_merged(list(group)) for _, group in groupby(found, key=lambda cost: (cost.name, cost.weights))]
        return sorted(merged, key=lambda cost: -cost.seconds)

    def _estimate(self, machine: RankMachine, operation: OperationCost, step: StepWork) -> OperationEstimate:
        amount = operation.amount(step)
        if operation.is_row_wise:
            seconds, bound = self._row_wise(machine, operation, amount)
        else:
            seconds, bound = self._product(machine, operation, amount)
        return OperationEstimate(
            operation.name,
            operation.weights,
            1,
            amount.nbytes,
            amount.flops,
            amount.fetched,
            seconds,
            machine.bound_s(amount, operation.computes),
            bound,
        )

    def _product(self, machine: RankMachine, operation: OperationCost, amount: Amount) -> tuple[float, Bound]:
        if amount.rows == 0 or amount.pieces == 0:  # a rank without heads has no states
            return 0.0, "read"

        def of(bound: str) -> float:
            return self.efficiencies.of(operation.kind, operation.weights, bound, amount.rows)

        computes = peak_format(operation.kind, operation.weights).partition("/")[0]
        read = amount.nbytes / machine.read_bytes_s / of("read")
        compute = amount.flops / machine.machine.peak(machine.cores, computes) / of("flops")
        if operation.kind == "recurrent":
            compute *= _busiest(amount, machine.cores) * machine.cores
        seconds = max(read, compute) + self.efficiencies.more_barrier_s(machine.machine.barrier_us * 1e-6)
        return seconds, "read" if read > compute else "flops"

    def _row_wise(self, machine: RankMachine, operation: OperationCost, amount: Amount) -> tuple[float, Bound]:
        if amount.rows == 0 or amount.pieces == 0:  # a rank without heads has nothing to rotate
            return 0.0, "cores"
        time = self.efficiencies.row_time(operation.name)
        nbytes = amount.touched * _busiest(amount, machine.cores)
        nbytes += amount.repeated if amount.rows < machine.cores else 0.0
        rate = time.core_bytes_s.at(max(amount.rows / machine.cores, 1.0))
        cores = time.fixed_s + nbytes / rate + self.efficiencies.more_barrier_s(machine.machine.barrier_us * 1e-6)
        ranks = amount.meetings * machine.machine.meeting_us * 1e-6
        ranks += amount.fetched / (machine.machine.link_gb_s * 1e9)
        return cores + ranks, "ranks" if ranks > cores else "cores"


def _busiest(amount: Amount, cores: int) -> float:
    """Return the share of the core with most work. Cores take whole pieces, and it has one more than others."""
    return -(-amount.pieces // cores) / amount.pieces


def prefill_steps(input_len: int, chunk: int, *, pooled: bool = False) -> list[StepWork]:
    """Return the steps of a prompt, in chunks as the scheduler cuts it; its last token is sampled from, or pooled."""
    starts = range(0, input_len, chunk)
    ends = [int(start + chunk >= input_len) for start in starts]
    return [
        StepWork([(start, min(chunk, input_len - start))], 0 if pooled else end, end if pooled else 0)
        for start, end in zip(starts, ends, strict=True)
    ]


def decode_step(batch: int, context: int) -> StepWork:
    """Return a step with one more token for each of `batch` sequences of `context` tokens."""
    return StepWork([(context, 1)] * batch, batch)


def _merged(costs: Iterable[OperationEstimate]) -> OperationEstimate:
    """Return one estimate for operations that are alike, with the bound of most of their time."""
    each = list(costs)
    by_bound: dict[Bound, float] = {}
    for cost in each:
        by_bound[cost.bound] = by_bound.get(cost.bound, 0.0) + cost.seconds
    return OperationEstimate(
        each[0].name,
        each[0].weights,
        len(each),
        sum(cost.nbytes for cost in each),
        sum(cost.flops for cost in each),
        sum(cost.fetched for cost in each),
        sum(cost.seconds for cost in each),
        sum(cost.bound_s for cost in each),
        max(by_bound, key=by_bound.__getitem__),
    )
