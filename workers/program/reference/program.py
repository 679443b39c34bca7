"""A program as the worker drives it, run by the reference."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numaserve.shm_comm import Board
from numaserve.workers.interface.protocol import TokenLogprobs
from numaserve.workers.program.buffers import Buffer
from numaserve.workers.program.caches import CacheIndex
from numaserve.workers.program.handles import Handle
from numaserve.workers.program.layout import lifetimes
from numaserve.workers.program.ops.base import Matrix, Operation
from numaserve.workers.program.ops.rows import Pool, TokenRows, has_node
from numaserve.workers.program.outside import outside_rows
from numaserve.workers.program.reference.caches import Bytes, KvCache, States
from numaserve.workers.program.reference.images import ImageRows, PlacedTuple
from numaserve.workers.program.reference.masks import StepMasks
from numaserve.workers.program.reference.numbers import DECLARED, Numbers
from numaserve.workers.program.reference.operations.table import OPERATIONS
from numaserve.workers.program.reference.ranks import Member, alone
from numaserve.workers.program.reference.run import Run, Weights
from numaserve.workers.program.reference.segments import SequenceStates
from numaserve.workers.program.reference.slots import SlotTable
from numaserve.workers.program.reference.step import Ints, make_step
from numaserve.workers.program.setup import ProgramSetup

# Sequence, sample, target, log-probabilities of named tokens, as native code returns them.
Row = tuple[int, tuple[Any, ...] | None, tuple[Any, ...] | None, list[float]]


class ReferenceProgram:
    """A stand-in for `kernels.Program`, for operations fused or not. See there for what the methods take.

    `values` are those of the last operation's buffers in the last step, as many rows of each as the step had.
    """

    isa = "reference"

    def __init__(
        self,
        setup: ProgramSetup,
        operations: Sequence[Operation],
        weights: Callable[[Handle], Any] | None = None,
        numbers: Numbers = DECLARED,
        ranks: Member | None = None,
        *,
        lender: ReferenceProgram | None = None,
    ) -> None:
        """`weights` and `lender` as for `native.make_program`. `ranks`: where the ranks meet; None: this is the only
        one."""
        self._setup, self._operations, self._numbers = setup, list(operations), numbers
        self._weights = Weights(numbers, weights)
        self._caches = KvCache(setup, numbers) if lender is None else lender.kv, States(setup)
        self._lent = lender is not None
        self._ranks = ranks or alone()
        self.outside = outside_rows(self._operations, lambda buffer, dtype: np.zeros((buffer.rows, buffer.cols), dtype))
        self._slots = SlotTable(setup.limits, setup.shape.vocab_bounds[-1])
        self._took = 0  # nanoseconds
        self._shape_totals: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
        self._costs = [operation.cost(setup) for operation in self._operations]
        self._profile = [[0, 0, 0] for _ in self._operations]  # nanoseconds, bytes, operations
        self._last_uses = _last_uses(self._operations)
        self._nodes = [*accumulate(map(has_node, self._operations), initial=0)]  # the number before each operation
        self._paused: Run | None = None  # between parts of a step
        self._pools = any(isinstance(operation, Pool) for operation in self._operations)
        self._images = ImageRows.of(self._operations)
        self._gives_tokens = any(isinstance(operation, TokenRows) for operation in self._operations)
        self.values: dict[Buffer, torch.Tensor] = {}
        self.nan_sequences: list[int] = []
        self.dropped_sequences: list[int] = []
        self.pooled: list[tuple[int, bytes]] = []
        self.late_sequences: list[int] = []
        self._masks: tuple[Board | None, float] = (None, 0.0)

    def use_masks(self, board: Board, grace_s: float) -> None:
        """Look for masks there."""
        self._masks = (board, grace_s)

    def init_slot(self, slot: int, settings: Mapping[str, Any]) -> None:
        """Forget what a slot held."""
        self._slots.init(slot, settings)

    def append_pages(self, slot: int, pages: Sequence[int]) -> None:
        """Add to a slot's page table."""
        self._slots.append_pages(slot, pages)

    def advance_window(self, slot: int, window: int, first: int, pages: Sequence[int]) -> None:
        """Add to a window table of a slot, whose `first` pages are no longer read."""
        self._slots.advance_window(slot, window, first, pages)

    def revert(self) -> None:
        """Undo the changes of slots since the last step that was run."""
        self._slots.revert()

    def step(
        self,
        sequences: Ints,
        tokens: Ints,
        targets: Ints,
        step_id: int = 0,
        drafts: Sequence[int] = (),
        *,
        states: Sequence[SequenceStates] = (),
        placed: Sequence[PlacedTuple] = (),
        part: tuple[int, int, int, int] | None = None,
    ) -> tuple[list[Row], int, int, int]:
        """Run a batch. Raises `ValueError` for one that cannot be run."""
        begin = time.monotonic_ns()
        step = make_step(
            self._setup,
            self._slots,
            sequences,
            tokens,
            targets,
            drafts=drafts,
            states=states,
            placed=placed,
            images=self._images,
        )
        if step.pooled and not self._pools:
            raise ValueError("a step asks for an embedding, but the model was loaded without support for embeddings")
        if step.wants_tokens and not self._gives_tokens:
            raise ValueError("a step asks for vectors of tokens, but the model has none")
        self._slots.commit()
        self.nan_sequences, self.dropped_sequences, self.late_sequences = [], [], []
        if not len(step.tokens):  # torch has no products of nothing, and there is no other rank to meet
            return [], time.monotonic_ns() - begin, 0, 0
        masks = StepMasks(*self._masks, step_id, self._setup.limits.max_slots)
        first, end = part[:2] if part is not None else (0, self._nodes[-1])
        run = self._paused
        if run is None or first == 0:
            run = Run(self._setup, self._numbers, self._weights, *self._caches, self._ranks, step, masks, self.outside)
        with torch.inference_mode():
            self._ranks.run(lambda: self._run(run, first, end))
        self._paused = run if end < self._nodes[-1] else None
        self.values, self.nan_sequences, self.dropped_sequences = run.values, run.spoiled, run.dropped
        self.late_sequences = run.late
        self.pooled = run.pooled
        took = time.monotonic_ns() - begin
        self._took += took
        if first == 0:
            self._shape_totals = tuple(map(operator.add, self._shape_totals, step.shape))
        found = zip(step.logit_rows, run.sampled, strict=True) if run.sampled else ()
        rows = [(row.sequence.index, _told(chosen), _told(target), named) for row, (chosen, target, named) in found]
        return rows, took, 0, masks.waited_ns

    def expand(self, matrices: Iterable[Matrix]) -> None:
        """Expand weights now, not in the first step that needs them."""
        for matrix in matrices:
            self._weights.values(matrix)

    @property
    def totals(self) -> tuple[int, int, int]:
        """Steps, tokens and nanoseconds of all steps so far, but for those of nothing."""
        return self._shape_totals[0], self._shape_totals[2], self._took

    @property
    def shape_totals(self) -> tuple[int, ...]:
        """The sums over these steps that the native Program has."""
        return self._shape_totals

    def profile(self) -> list[tuple[str, str, int, int, int, int, int]]:
        """The row that the native Program has for each node; waiting for other ranks is not shown separately."""
        return [
            (costs[0].name, costs[0].computes, ns, 0, 0, nbytes, flops)
            for costs, (ns, nbytes, flops) in zip(self._costs, self._profile, strict=True)
            if costs
        ]

    @property
    def kv(self) -> KvCache:
        """Its own KV cache, or the lender's."""
        return self._caches[0]

    @property
    def kv_memory(self) -> list[tuple[int, int]]:
        """Address and bytes of each layer's keys and values, if these are its own."""
        return [] if self._lent else self.kv.layers

    def state_memory(self, index: CacheIndex) -> tuple[Bytes, Bytes]:
        """The states of a layer: [slots and snapshots, bytes] and [pages, bytes]."""
        return self._caches[1].memory(index)

    def _run(self, run: Run, first: int, end: int) -> None:
        for index, operation in enumerate(self._operations):
            if not run.step.tokens:  # none of them wants logits
                return
            if not first <= self._nodes[index] < end + (end == self._nodes[-1]):
                continue
            costs, profile = self._costs[index], self._profile[index]
            begin = time.monotonic_ns()
            OPERATIONS[type(operation)](run, operation)
            amounts = [cost.amount(run.step.work) for cost in costs]
            profile[0] += time.monotonic_ns() - begin
            profile[1] += round(sum(each.nbytes for each in amounts))
            profile[2] += round(sum(each.flops for each in amounts))
            for buffer in self._last_uses[index]:
                run.values.pop(buffer, None)  # without experts for any token, some get none


def _last_uses(operations: Sequence[Operation]) -> list[list[Buffer]]:
    """Return the buffers that no operation needs after each operation; the buffers of the last one stay for the
    caller."""
    found: list[list[Buffer]] = [[] for _ in operations]
    for buffer, life in lifetimes(operations).items():
        if life.last < len(operations) - 1:
            found[life.last].append(buffer)
    return found


def _told(logprobs: TokenLogprobs | None) -> tuple[Any, ...] | None:
    if logprobs is None:
        return None
    return logprobs.token, logprobs.logprob, logprobs.top_ids, logprobs.top_logprobs
