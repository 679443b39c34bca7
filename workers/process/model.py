"""A rank's model: its packed weights, the Program that runs them, and the translation of plans into native calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
from numaserve.kernels import PackedMatrix
from numaserve.workers.interface.drafters import WORKER_DRAFTERS
from numaserve.workers.interface.protocol import (
    AdapterLoaded,
    Ceilings,
    FromDisk,
    Launch,
    OperationProfile,
    OperationTerms,
    ProfileRequest,
    RankProfile,
    SampledToken,
    SeqPlan,
    SeqResult,
    SlotInit,
    StepPlan,
    TokenLogprobs,
    TowerWork,
    WeightsOrigin,
    WindowWork,
)
from numaserve.workers.layers.token_head import HEAD_COLUMNS
from numaserve.workers.planning.ceilings import ceilings_in_slices
from numaserve.workers.process.adapters import RankAdapters
from numaserve.workers.process.continuations import Continuations
from numaserve.workers.process.drafter import RankParts
from numaserve.workers.process.drafters import make_drafter
from numaserve.workers.process.links import StageLinks
from numaserve.workers.process.node import NodeContext
from numaserve.workers.process.pooled import NO_VECTOR, PooledVectors
from numaserve.workers.process.populate import Population
from numaserve.workers.process.rank_program import RankProgram, RankWeights
from numaserve.workers.process.stage_steps import StageSteps
from numaserve.workers.process.tower import make_tower
from numaserve.workers.program.slots import END_SAMPLE, slot_settings
from numaserve.workers.weights.cache.background import BackgroundWriter

if TYPE_CHECKING:
    from numaserve.workers.kv_disk.tier import DiskTier

# Token, its log-probability, the most likely tokens, and their log-probabilities.
NativeLogprobs = tuple[int, float, list[int], list[float]]
# Index in the plan, sampled token, log-probabilities of the prompt's next token, and those of the named tokens.
NativeRow = tuple[int, NativeLogprobs | None, NativeLogprobs | None, list[float]]

_DRAFT, _TOWER = "draft ", "tower "


@dataclass
class StepAnswer:
    """A step's results, one for each sequence of the plan, and nanoseconds inside the native call."""

    seqs: list[SeqResult]
    native_ns: int
    all_reduce_ns: int
    mask_wait_ns: int
    draft_ns: int = 0  # in the drafter, before and after the served model
    tower_ns: int = 0  # in the vision tower, before the served model


class RankModel:
    """The model of one rank, ready to run plans, and its draft model, if there is one."""

    def __init__(
        self,
        launch: Launch,
        node: NodeContext,
        report: Callable[[int, int], None],
        wake: Callable[[], None] = lambda: None,
        links: StageLinks | None = None,
    ) -> None:
        """Load the weights and build the Programs; `report(done, total)` gets bytes of packed weights, and `wake` is
        called by other threads when there are `answers`. A pipeline stage has `links`. Raises `OperatorError` for a
        checkpoint that cannot be served."""
        held = RankWeights(launch)
        self._loaded = [held]
        if launch.draft is not None:
            of_draft = msgspec.structs.replace(
                launch,
                model=launch.draft.model,
                settings=launch.draft.settings,
                capacity=msgspec.structs.replace(launch.capacity.without_window_tables(), feature_tiles=0),
            )
            self._loaded.append(RankWeights(of_draft, held.config))
        self.weight_bytes = sum(each.weight_bytes for each in self._loaded)
        self.kv_bytes = sum(each.kv_bytes for each in self._loaded)
        self.state_bytes = sum(each.state_bytes for each in self._loaded)
        self._launch = launch
        self._node = node
        before = 0
        for each in self._loaded:
            each.load(node, partial(_report_behind, report, before, self.weight_bytes))
            before += each.weight_bytes
        shows_rows = any(each.config.decoder.borrows for each in self._loaded)
        decoder = replace(held.config.decoder, shows_rows=shows_rows)
        self.adapters = RankAdapters(held, wake)
        limits = launch.capacity
        if launch.settings.pooled:
            limits = msgspec.structs.replace(limits, max_logit_rows=0)
        served = RankProgram(held, decoder, node, limits)
        self._program = served.program
        self._stage = None if links is None else StageSteps(links, served.outside)
        self._vectors = PooledVectors(decoder, served.outside.kept(HEAD_COLUMNS) if decoder.token_head else None)
        self._drafter = make_drafter(RankParts(launch, self._loaded, served, node))
        self._tower = make_tower(held, served.outside, node)
        inputs = None if self._tower is None else decoder.inputs
        self._of_images = None if inputs is None else inputs.of_images
        # By what stands before the names of their operations.
        self._programs = [("", served)]
        if self._tower is not None:
            self._programs.append((_TOWER, self._tower.program))
        if self._drafter is not None:
            self._programs += [(_DRAFT, each) for each in self._drafter.programs]
            self._continuations = Continuations(reads_drafts=WORKER_DRAFTERS[launch.drafter].reads_drafts)
        self.terms = served.terms
        if node.masks is not None:
            self._program.use_masks(node.masks, launch.mask_grace_s)
        self._cache_writers: list[BackgroundWriter] = []
        self._steps = 0
        self.disk = self._make_disk(served, wake) if launch.disk_folder else None
        self._wants_logprobs = [False] * launch.capacity.max_slots

    @property
    def draft_terms(self) -> list[OperationTerms]:
        """The terms of the drafter's operations."""
        return [terms for of, each in self._programs if of == _DRAFT for terms in each.terms]

    @property
    def tower_terms(self) -> list[OperationTerms]:
        """The terms of the vision tower's operations, for each tile."""
        return [] if self._tower is None else self._tower.terms

    @property
    def tower_parts(self) -> list[float]:
        """The share of a tower run's multiplies in each of its parts."""
        return [] if self._tower is None else self._tower.shares

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return self._program.isa

    @property
    def origin(self) -> WeightsOrigin:
        """The origin of the weights of all models."""
        return "cache" if all(each.loaded.origin == "cache" for each in self._loaded) else "checkpoint"

    @property
    def load_seconds(self) -> float:
        """The seconds that loading the weights took."""
        return sum(each.loaded.seconds for each in self._loaded)

    def to_be_cached(self) -> list[Callable[[Callable[[], None]], object]]:
        """Return the writers of packed weights to the cache; none where the weights are cached or the cache is off."""
        return [each.loaded.save for each in self._loaded if each.loaded.save is not None]

    def cache_weights(self) -> None:
        """Start to write the packed weights to the cache."""
        cpus = self._launch.cpus[self._launch.rank]
        self._cache_writers = [BackgroundWriter(save, lambda: self._steps, cpus) for save in self.to_be_cached()]

    def close(self) -> None:
        """Stop the work alongside the steps."""
        if self.disk is not None:
            self.disk.close()
        for writer in self._cache_writers:
            writer.stop()

    def abandon(self, reason: str) -> None:
        """End the steps of the other ranks, which cannot continue without this one."""
        if self._node.ring is not None:
            self._node.ring.abort(reason)

    def profile(self, request: ProfileRequest, ceilings: Ceilings | None = None) -> RankProfile:
        """Return the cost of the steps since load, with the measured `ceilings`."""
        return RankProfile(request.request_id, self._launch.rank, *self._program.totals, self.operations(), ceilings)

    def measure_ceilings(self) -> Generator[None, None, Ceilings | None]:
        """Measure the limits of the node, in slices; nothing with the reference backend."""
        if self._launch.backend != "native":
            return None
        resident = [(each.address, each.nbytes) for each in self._matrices]
        return (yield from ceilings_in_slices(self._node.team, self.formats, resident))

    @property
    def formats(self) -> set[str]:
        """The formats of operations and of weights, including formats that weights are widened from."""
        # A plan reports the achieved fraction of the peak of each format.
        return {each.format for each in self.operations()} | {each.format for each in self._matrices}

    @property
    def _matrices(self) -> list[PackedMatrix]:
        return [matrix for each in self._loaded for matrix in each.loaded.weights.matrices]

    def operations(self) -> list[OperationProfile]:
        """Return the cost of all operations since load. The names of the drafter's operations begin with "draft", those
        of the vision tower's operations with "tower"."""
        found = ((of, each) for of, program in self._programs for each in program.operations())
        return [msgspec.structs.replace(each, name=of + each.name) for of, each in found]

    def kv_populations(self) -> list[Population]:
        """Return the tasks that touch the KV caches' memory ahead of its use."""
        # The tower's pages are few, and no plan names them.
        return [found for of, each in self._programs if of != _TOWER for found in each.kv_populations()]

    def misplaced_pages(self) -> int:
        """Return the number of memory pages of weights and KV cache that are on another node than the rank's node."""
        weights = [(each.address, each.nbytes) for each in self._matrices]
        caches = [layer for _, each in self._programs for layer in each.program.kv_memory]
        return self._node.misplaced_pages([*weights, *caches])

    def answers(self) -> list[AdapterLoaded | FromDisk]:
        """Return the answers that are there of work alongside the steps."""
        return [*self.adapters.answers(), *(() if self.disk is None else self.disk.answers())]

    def run(self, plan: StepPlan) -> StepAnswer:
        """Run one step. Raises `ValueError`, `TypeError` or `OverflowError` for a plan that cannot be run, `RingError`
        when a peer is gone."""
        self._steps += 1
        try:
            if self._stage is not None:
                plan = self._stage.begin(plan)
            self._node.set_deadline(plan.deadline_s or self._launch.step_deadline_s)
            for seq in plan.seqs:
                self._vectors.check(seq)
                if seq.init is not None:
                    self._begin(seq.slot, seq.init)
                if seq.pages:
                    self._program.append_pages(seq.slot, seq.pages)
            for work in plan.windows or ():
                self._advance_window(plan, work)
            tower_ns = self._run_tower(plan.tower) if plan.tower else 0
            draft_ns = 0
            if self._drafter is not None:
                plan = self._continuations.completed(plan)
                self._drafter.prepare(plan)
                if plan.draft_work:
                    plan, draft_ns = self._drafter.run(plan)
            sequences = np.array([self._native_row(seq) for seq in plan.seqs], dtype=np.int32).reshape(-1, 6)
            tokens = _concatenated(seq.tokens for seq in plan.seqs)
            targets = _concatenated(seq.prompt_logprobs for seq in plan.seqs)
            states = [(work.index, work.begin, work.marks) for work in plan.states or ()]
            placed = [msgspec.structs.astuple(rows) for rows in plan.placed or ()]
            _replace_placed(tokens, sequences, placed, self._of_images)
            rows, native_ns, all_reduce_ns, mask_wait_ns = self._program.step(
                sequences, tokens, targets, plan.step_id, plan.drafts or [], states=states, placed=placed
            )
            if self._stage is not None:
                self._stage.end(plan)
            if self._drafter is not None:
                self._continuations.ran(plan, _sampled(plan, rows))
                draft_ns += self._drafter.follow(plan)
        except Exception:
            # Only a complete pass shows whether a plan can be run. A first pass without changes would charge every step
            # the cost that only a refusal should have.
            self._program.revert()
            if self._drafter is not None:
                self._drafter.revert()
            if self._stage is not None:
                self._stage.refuse(plan)
            raise
        results = self._results(plan, rows) if self._launch.answers else []
        return StepAnswer(results, native_ns, all_reduce_ns, mask_wait_ns, draft_ns, tower_ns)

    def _native_row(self, seq: SeqPlan) -> tuple[int, int, int, bool, int, int]:
        end = END_SAMPLE if seq.sample else self._vectors.end_of(seq) if seq.pool else 0
        return (seq.slot, seq.start, seq.num_tokens, seq.from_previous, end, len(seq.prompt_logprobs))

    def _begin(self, slot: int, init: SlotInit) -> None:
        # Every rank must refuse the sequence, but only rank 0 has the board.
        if init.sampling.masked and self._launch.mask_fd < 0:
            raise ValueError("the step has a constrained sequence, but this worker receives no token masks")
        self.adapters.check(init.adapter)
        self._program.init_slot(slot, slot_settings(init))

    def _make_disk(self, served: RankProgram, wake: Callable[[], None]) -> DiskTier:
        # Most servers have no disk tier, and import nothing of it.
        from numaserve.workers.process.disk import make_disk  # noqa: PLC0415

        drafters = () if self._drafter is None else self._drafter.programs
        return make_disk(self._launch, served, drafters, lambda: self._steps, wake)

    def _run_tower(self, works: list[TowerWork]) -> int:
        if self._tower is None:
            raise ValueError("the step has images, but the model was loaded without a vision tower")
        return self._tower.run(works)

    def _advance_window(self, plan: StepPlan, work: WindowWork) -> None:
        if not 0 <= work.index < len(plan.seqs):
            raise ValueError("the step has a window table of a sequence that is not in it")
        self._program.advance_window(plan.seqs[work.index].slot, work.window, work.first, work.pages)

    def _results(self, plan: StepPlan, rows: list[NativeRow]) -> list[SeqResult]:
        for seq in plan.seqs:
            if seq.init is not None:
                self._wants_logprobs[seq.slot] = seq.init.sampling.logprobs >= 0
        sampled: list[list[SampledToken]] = [[] for _ in plan.seqs]
        prompts: list[list[TokenLogprobs]] = [[] for _ in plan.seqs]
        for index, sample, target, named in rows:
            if sample is not None:
                wanted = self._wants_logprobs[plan.seqs[index].slot]
                sampled[index].append(SampledToken(sample[0], TokenLogprobs(*sample) if wanted else None, named))
            if target is not None:
                prompts[index].append(TokenLogprobs(*target))
        results = []
        for tokens, of_prompt in zip(sampled, prompts, strict=True):
            first, *following = tokens or [SampledToken(-1)]
            told = SeqResult(
                first.token, first.logprobs, of_prompt, token_logprobs=first.token_logprobs, following=following
            )
            results.append(told)
        for index, vector in self._vectors.of(plan.seqs, self._program.pooled):
            results[index] = msgspec.structs.replace(results[index], embedding=vector or NO_VECTOR, nan=vector is None)
        for index in self._program.nan_sequences:
            results[index] = msgspec.structs.replace(results[index], nan=True)
        for index in self._program.dropped_sequences:
            results[index] = msgspec.structs.replace(results[index], dropped=True)
        for index in self._program.late_sequences:
            results[index] = msgspec.structs.replace(results[index], late=True)
        return results


def _sampled(plan: StepPlan, rows: list[NativeRow]) -> list[list[int]]:
    sampled: list[list[int]] = [[] for _ in plan.seqs]
    for index, sample, *_ in rows:
        if sample is not None:
            sampled[index].append(sample[0])
    return sampled


def _replace_placed(
    tokens: npt.NDArray[np.int32],
    sequences: npt.NDArray[np.int32],
    placed: Sequence[tuple[int, int, int, int]],
    token: int | None,
) -> None:
    """Put `token`, if there is one, in place of the tokens of a step that stand for rows of images. Plans that name
    others are refused later."""
    if token is None:
        return
    slots, starts, counts, from_previous = sequences[:, :4].T
    ends = np.cumsum(np.where(from_previous, 0, counts))
    for index, start, count, _ in placed:
        if 0 <= index < len(slots):
            first = int(ends[index] - counts[index] + start - starts[index])
            tokens[max(first, 0) : max(first + count, 0)] = token


def _concatenated(parts: Iterable[list[int]]) -> npt.NDArray[np.int32]:
    return np.fromiter(itertools.chain.from_iterable(parts), dtype=np.int32)


def _report_behind(report: Callable[[int, int], None], before: int, total: int, done: int) -> None:
    report(before + done, total)
