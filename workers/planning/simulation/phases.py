"""The estimate of a phase of a load: what its operations need at least, and the time that they were counted to take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from msgspec.structs import replace
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.step_lengths import ECONOMICAL_STEP_COST
from numaserve.workers.planning.needs import message_bytes, pages_of
from numaserve.workers.planning.roofline.phases import RankMachine, least_of
from numaserve.workers.planning.roofline.ranks import rank_operations
from numaserve.workers.planning.simulation.counting import CountedGroup
from numaserve.workers.planning.simulation.layers import CountedModel
from numaserve.workers.planning.simulation.times import HostTimes, OperationTime, StepTotals
from numaserve.workers.program.cost import StepWork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numaserve.workers.layers.forward import Forward
    from numaserve.workers.layers.partition import Partition
    from numaserve.workers.layers.vision import Tower
    from numaserve.workers.models.spec import ModelConfig
    from numaserve.workers.planning.roofline.efficiency import Efficiencies

# Overhead of a step: its plan is decoded and laid out, its result reported; measured with `numaserve bench offline`.
STEP_S = 150e-6


@dataclass(frozen=True)
class OperationEstimate:
    """The operations of one name on a rank, in some steps: their number, the bytes of weights and KV cache that they
    read, their floating-point operations and the seconds that these take at the ceilings; and their time."""

    calls: int
    nbytes: float
    flops: float
    bound_s: float
    time: OperationTime

    @property
    def name(self) -> str:
        """The name of the operations."""
        return self.time.name


@dataclass(frozen=True)
class PhaseEstimate:
    """The estimate of some steps: the operations of the rank with most to do, the longest first, and the seconds that
    the steps take. `waiting_s`: of the mean rank, for others. `step_seconds`: of each step."""

    name: str
    steps: int
    rank: int
    costs: list[OperationEstimate]
    seconds: float
    waiting_s: float
    step_seconds: Sequence[float]

    @property
    def nbytes(self) -> float:
        """Bytes of weights and KV cache that the rank reads."""
        return sum(cost.nbytes for cost in self.costs)

    @property
    def bound_s(self) -> float:
        """Seconds of reading and computing at the ceilings."""
        return sum(cost.bound_s for cost in self.costs)


@dataclass(frozen=True)
class Phases:
    """Estimates phases of a model whose ranks each have a part of a machine."""

    config: ModelConfig
    partition: Partition
    ranks: Sequence[RankMachine]
    efficiencies: Efficiencies
    max_step_tokens: int
    skew: float = 0.0  # of the routing to experts; see `CountedGroup`

    def estimate(self, phases: Sequence[tuple[str, Sequence[StepWork]]]) -> list[PhaseEstimate]:
        """Return the estimates of phases, each with a name and steps of at most `max_step_tokens` tokens. Raises
        `OperatorError` for formats that the checkpoint does not support."""
        limits = _limits([step for _, steps in phases for step in steps], self.max_step_tokens)
        slot_bytes = message_bytes(
            self.config, self.partition, limits.max_step_tokens, limits.max_logit_rows, limits.max_slots
        )
        times = HostTimes(self.ranks, self.efficiencies, STEP_S)
        with CountedModel(self.config, self.partition, limits, slot_bytes, self.skew) as model:
            return [
                self._phase(self.config.decoder, name, steps, [model.step(step, times) for step in steps])
                for name, steps in phases
            ]

    def estimate_tile(self, tower: Tower) -> PhaseEstimate:
        """Return the estimate of a run of the model's vision tower, which makes the features of a tile of an image.
        Keys and values are in bf16, as in a worker."""
        partition = self.config.partition(
            self.partition.shares, replace(self.partition.settings, kv_cache_dtype="bf16")
        )
        run, pages = StepWork([(0, tower.patches)], 0), pages_of(tower.patches)
        limits = Capacity.of_program(tower.patches, 0, 1, pages, pages)
        slot_bytes = message_bytes(self.config, self.partition, 1, 1, 1)
        with CountedGroup(tower, partition, limits, slot_bytes) as group:
            totals = HostTimes(self.ranks, self.efficiencies).of(group, run)
        return self._phase(tower, "tile of an image", [run], [totals])

    def _phase(self, model: Forward, name: str, steps: Sequence[StepWork], by_step: list[StepTotals]) -> PhaseEstimate:
        totals = reduce(StepTotals.plus, by_step)
        rank = totals.busiest
        operations = rank_operations(model, self.partition.ranks[rank])
        counts = least_of(self.ranks[rank], operations, steps)
        found = [
            OperationEstimate(least.calls, least.nbytes, least.flops, least.seconds, totals.operation(*key, rank))
            for key, least in counts.items()
        ]
        found.sort(key=lambda each: -each.time.seconds)
        seconds = [each.seconds for each in by_step]
        return PhaseEstimate(name, len(steps), rank, found, totals.seconds, totals.waiting_s, seconds)


def economical(sizes: Sequence[int], prompts: Sequence[PhaseEstimate]) -> tuple[int, PhaseEstimate]:
    """Return the first of ascending `sizes` of steps with which a prompt takes little longer than with the best size,
    and its estimate. `prompts`: the estimates by size."""
    least = ECONOMICAL_STEP_COST * min(each.seconds for each in prompts)
    return next(each for each in zip(sizes, prompts, strict=True) if each[1].seconds <= least)


def _limits(steps: Sequence[StepWork], max_step_tokens: int) -> Capacity:
    """Return the limits of programs for these steps, and for others of as many tokens."""
    slots = max(len(step.sequences) for step in steps)
    pages = max(pages_of(start + count) for step in steps for start, count in step.sequences)
    return Capacity.of_program(
        max_step_tokens=max(max_step_tokens, slots),
        max_logit_rows=max(step.logit_rows for step in steps),
        max_slots=slots,
        pages_per_slot=pages,
        num_pages=pages + 1,
    )
