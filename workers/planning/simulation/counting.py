"""The work of each thread of each rank in a step, counted by the model's own Programs.

The nodes, their planners, barriers and collectives run as they do on the host, with as many threads and ranks. Only the
kernels are others: they count bytes and operations, and compute nothing. No weight is loaded, and the memory of
weights, caches and activations is hardly touched. The threads of a rank take turns on one: as threads of the operating
system, hundreds on a few cores would take most of the time to wait for each other at barriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numaserve.kernels import AdapterWeights, Counter, PackedMatrix, RopeTable, Team
from numaserve.kernels import Vector as NativeVector
from numaserve.shm_comm import Ring
from numaserve.shm_comm.segment import Segment, create_segment
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import PAGE_SIZE, SamplingParams, SlotInit
from numaserve.workers.program.handles import Adapters, Handle, Matrix, MatrixFormat, Rope
from numaserve.workers.program.native import make_program
from numaserve.workers.program.ops.rows import has_node
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.setup import ProgramSetup, Ranks
from numaserve.workers.program.slots import END_POOL, END_SAMPLE, slot_settings
from numaserve.workers.weights.weights import Native

if TYPE_CHECKING:
    from types import TracebackType

    from numaserve.workers.layers.forward import Forward
    from numaserve.workers.layers.partition import Partition, RankPart
    from numaserve.workers.program.cost import OperationCost, StepWork
    from numaserve.workers.program.ops.base import Operation

_PATIENCE_S = 600.0


class Work(NamedTuple):
    """Bytes of weights, KV cache and states; of activations read and written; of other ranks' parts; operations."""

    memory: int
    moved: int
    remote: int
    flops: int

    def plus(self, more: Work) -> Work:
        """Return the sum of both, figure by figure."""
        return Work(*map(int.__add__, self, more))


@dataclass(frozen=True)
class Phase:
    """The work of a rank between two barriers, in one operation: of each thread, and of each item that threads take
    when they are free. `joins_next`: threads alternate between this phase and the next one, without a barrier."""

    index: int  # of the operation, among those that have nodes
    operation: Operation
    threads: Sequence[Work]
    items: Sequence[Work]
    joins_next: bool = False


class CountedGroup:
    """The ranks of a model, which count the work of their steps."""

    def __init__(
        self, model: Forward, partition: Partition, limits: Capacity, slot_bytes: int, skew: float = 0.0
    ) -> None:
        """Make the Programs; `slot_bytes` of the ring, as `ring_slot_bytes` has them. `skew`: of the routing to
        experts; 0 is even, 1 is Zipf's law. Raises `ValueError` for what no Program can do."""
        shares = partition.shares
        with ExitStack() as resources:
            segment = None
            if len(shares) > 1:
                segment = resources.enter_context(create_segment(len(shares), min(shares), slot_bytes))
            shared = _Model(model, limits, segment, _Unloaded(limits.pages_per_slot * PAGE_SIZE), skew)
            # Each rank keeps a thread: it is thread 0 of the rank's team.
            pools = [resources.enter_context(ThreadPoolExecutor(1)) for _ in shares]
            made = [pool.submit(_CountedRank, shared, part) for pool, part in zip(pools, partition.ranks, strict=True)]
            self._ranks = list(zip(pools, [each.result() for each in made], strict=True))
            self._resources = resources.pop_all()

    @property
    def costs(self) -> list[list[OperationCost | None]]:
        """The cost of each operation that has a node, by rank; None for one that costs nothing."""
        return [rank.costs for _, rank in self._ranks]

    def __enter__(self) -> CountedGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ranks.clear()
        self._resources.close()

    def step(self, work: StepWork) -> list[list[Phase]]:
        """Return the phases of a step, by rank, in order."""
        steps = [pool.submit(rank.step, work) for pool, rank in self._ranks]
        return [each.result() for each in steps]


@dataclass(frozen=True)
class _Model:
    """The parts that all ranks have in common."""

    layers: Forward
    limits: Capacity
    segment: Segment | None
    weights: _Unloaded
    skew: float


class _CountedRank:
    """A rank's Program over kernels that count."""

    def __init__(self, model: _Model, part: RankPart) -> None:
        shares, ring, limits, segment = part.partition.shares, None, model.limits, model.segment
        self._steps = 0
        self._team = Team.in_turns(shares[part.rank])
        slot_bytes = 0
        if segment is not None:
            ring = Ring(segment.fd, part.rank, segment.nonce, len(shares))
            ring.set_deadline(_PATIENCE_S)
            ring.share_cores()
            slot_bytes = ring.slot_bytes
        settings = part.partition.settings
        setup = ProgramSetup(model.layers.shape(part), limits, Ranks(shares, part.rank, slot_bytes), settings)
        builder = ProgramBuilder(setup)
        model.layers.forward(builder, part)
        costed = list(builder.costed())
        operations = [operation for operation, _ in costed]
        self._operations = list(filter(has_node, operations))
        self.costs = [costs[0] if costs else None for operation, costs in costed if has_node(operation)]
        self._counter = Counter(model.skew)
        self._program = make_program(setup, operations, self._team, ring, model.weights.native, counter=self._counter)
        for slot in range(limits.max_slots):
            self._program.init_slot(slot, slot_settings(SlotInit(sampling=SamplingParams())))
            self._program.append_pages(slot, [0] * limits.pages_per_slot)  # of memory that nothing reads or writes

    def step(self, work: StepWork) -> list[Phase]:
        end = END_POOL if work.pooled else END_SAMPLE
        sequences = [
            (slot, start, count, 0, end if rows else 0, 0)
            for slot, ((start, count), rows) in enumerate(zip(work.sequences, work.sequence_rows(), strict=True))
        ]
        none = np.zeros(0, np.int32)
        self._program.step(np.array(sequences, np.int32), np.zeros(work.tokens, np.int32), none, self._steps)
        self._steps += 1
        return [
            Phase(
                node, self._operations[node], [Work(*each) for each in threads], [Work(*each) for each in items], joins
            )
            for node, threads, items, joins in self._counter.phases
        ]


@dataclass
class _Unloaded:
    """Native objects for handles, whose values are never read. Matrices of the same shape are one."""

    positions: int
    _matrices: dict[tuple[int, int, MatrixFormat], PackedMatrix] = field(default_factory=dict)

    def native(self, handle: Handle) -> Native:
        if isinstance(handle, Matrix):
            key = handle.n, handle.k, handle.made
            if key not in self._matrices:
                made = handle.made
                self._matrices[key] = PackedMatrix(handle.n, handle.k, made.format, made.group, made.offsets)
            return self._matrices[key]
        if isinstance(handle, Rope):
            none = np.zeros((self.positions, handle.config.rotary_dim // 2), np.float32)
            return RopeTable(none, none, None, handle.config.distance)
        if isinstance(handle, Adapters):
            return AdapterWeights(handle.places, handle.rank, handle.parts, handle.k, handle.panels)
        return NativeVector(np.zeros(handle.size, np.float32))
