"""The steps of a load, and the least that a rank's part of a machine needs for them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from numaserve.workers.planning.roofline.machine import Machine
from numaserve.workers.program.cost import Amount, OperationCost, StepWork


@dataclass(frozen=True)
class RankMachine:
    """A rank's part of the machine."""

    machine: Machine
    cores: int
    read_bytes_s: float

    def bound_s(self, amount: Amount, computes: str) -> float:
        """Return the minimum seconds of reading or computing."""
        return max(amount.nbytes / self.read_bytes_s, amount.flops / self.machine.peak(self.cores, computes))


class Least(NamedTuple):
    """The least work of the operations of one name: bytes of weights and KV cache, floating-point operations, and
    seconds at the ceilings. `calls`: the number of operations."""

    calls: int
    nbytes: float
    flops: float
    seconds: float

    def plus(self, more: "Least") -> "Least":
        """Return the sum of both, figure by figure."""
        return Least(
            self.calls + more.calls, self.nbytes + more.nbytes, self.flops + more.flops, self.seconds + more.seconds
        )


def least_of(
    rank: RankMachine, operations: Iterable[OperationCost], steps: Sequence[StepWork]
) -> Mapping[tuple[str, str], Least]:
    """Return what a rank's operations need in some steps, by their names and the formats of their weights."""
    found: dict[tuple[str, str], Least] = {}
    for each in operations:
        amounts = [each.amount(step) for step in steps]
        own = Least(
            len(steps),
            sum(amount.nbytes for amount in amounts),
            sum(amount.flops for amount in amounts),
            sum(rank.bound_s(amount, each.computes) for amount in amounts),
        )
        before = found.get((each.name, each.weights))
        found[each.name, each.weights] = own if before is None else before.plus(own)
    return found


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
