"""A rank's model: its packed weights and the Program that runs them, and the translation of plans into native calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
from numaserve.kernels import Program
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.models.load import open_model, read_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.ceilings import rank_ceilings
from numaserve.workers.planning.reference import page_bytes
from numaserve.workers.process.node import NodeContext
from numaserve.workers.process.populate import Population
from numaserve.workers.program.builder import ProgramBuilder
from numaserve.workers.program.cost import merged_terms
from numaserve.workers.program.native import make_program
from numaserve.workers.program.setup import ProgramLimits, ProgramSetup, Ranks
from numaserve.workers.program.slots import END_POOL, END_SAMPLE, slot_settings
from numaserve.workers.protocol import (
    PAGE_SIZE,
    Launch,
    OperationProfile,
    ProfileRequest,
    RankProfile,
    SampledToken,
    SeqPlan,
    SeqResult,
    SlotInit,
    StepPlan,
    TokenLogprobs,
)
from numaserve.workers.weights.cache.background import BackgroundWriter
from numaserve.workers.weights.cache.loading import RankLoader
from numaserve.workers.weights.weights import Weights

if TYPE_CHECKING:
    from numaserve.workers.program.reference.program import ReferenceProgram

# Name, format, nanoseconds, of which waiting for other ranks, bytes of weights, bytes read, operations.
NodeProfile = tuple[str, str, int, int, int, int, int]
# Token, its log-probability, the most likely tokens and theirs.
NativeLogprobs = tuple[int, float, list[int], list[float]]
# Index in the plan, what was sampled, what the wanted next token got.
NativeRow = tuple[int, NativeLogprobs | None, NativeLogprobs | None]


@dataclass
class StepAnswer:
    """A step's results, one for each sequence of the plan, and nanoseconds inside the native call."""

    seqs: list[SeqResult]
    native_ns: int
    all_reduce_ns: int
    mask_wait_ns: int


class RankModel:
    """The model of one rank, ready to run plans."""

    def __init__(self, launch: Launch, node: NodeContext, report: Callable[[int, int], None]) -> None:
        """Load and build; `report(done, total)` gets bytes of packed weights. Raises `OperatorError` for a checkpoint
        that cannot be served."""
        files = open_model(Path(launch.model))
        config = read_config(files, pooled=launch.settings.pooled)
        part = config.partition(launch.weights, launch.settings).ranks[launch.rank]
        self.weight_bytes = part.weight_bytes()
        kept = launch.backend, launch.settings.kv_cache_dtype
        self.kv_bytes = page_bytes(config, part, *kept) * launch.num_pages
        self._num_layers = config.num_layers
        self._launch = launch
        self._node = node
        # Whole pages: a slot's page table, not the context length, is what a plan's positions are checked against.
        positions = _pages_per_slot(launch) * PAGE_SIZE
        loader = RankLoader(files, config, part, positions, launch.weights_cache)
        self.loaded = loader.load(node.team, lambda done: report(done, self.weight_bytes))
        self._weights = self.loaded.weights
        builder = _builder(launch, node, config, part)
        self.terms = merged_terms(builder.costs())
        self._program = _build(builder, launch, node, part, self._weights)
        if node.masks is not None:
            self._program.use_masks(node.masks, launch.mask_deadline_s)
        self._cache_writer: BackgroundWriter | None = None
        self._steps = 0
        self._wants_logprobs = [False] * launch.max_running_requests
        self._names_tokens = [False] * launch.max_running_requests

    @property
    def isa(self) -> str:
        """Instruction set in use."""
        return self._program.isa

    def cache_weights(self) -> None:
        """Begin to write the packed weights to the cache, unless they are there or it is off."""
        if self.loaded.save is not None:
            cpus = self._launch.cpus[self._launch.rank]
            self._cache_writer = BackgroundWriter(self.loaded.save, lambda: self._steps, cpus)

    def close(self) -> None:
        """End what runs in the background."""
        if self._cache_writer is not None:
            self._cache_writer.stop()

    def abandon(self, reason: str) -> None:
        """End the steps of the other ranks, which cannot go on without this one."""
        if self._node.ring is not None:
            self._node.ring.abort(reason)

    def profile(self, request: ProfileRequest) -> RankProfile:
        """The cost of the steps since load. With `ceilings` it measures those first, as all other ranks must now."""
        ceilings, operations = None, self.operations()
        if request.ceilings and self._launch.backend == "native":
            # Those that weights are widened from too: a plan knows what fraction of their peak that reaches.
            formats = {each.format for each in operations} | {each.format for each in self._weights.matrices}
            ceilings = rank_ceilings(self._node.team, formats, teams=self._launch.world_size)
        return RankProfile(request.request_id, self._launch.rank, *self._program.totals, operations, ceilings)

    def operations(self) -> list[OperationProfile]:
        """The cost of the Program's operations since load."""
        return by_operation(self._program.totals[0], self._program.profile())

    def kv_population(self) -> Population:
        """The task that touches the KV cache's memory ahead of its use."""
        address, nbytes = self._program.kv_memory  # with what rounds it up, or none on a rank without heads
        layer_bytes = min(nbytes, self.kv_bytes) // self._num_layers
        return Population(address, layer_bytes, self._num_layers, self._launch.num_pages)

    def misplaced_pages(self) -> int:
        """Memory pages of weights and KV cache that lie on another node than the rank's."""
        weights = [(matrix.address, matrix.nbytes) for matrix in self._weights.matrices]
        return self._node.misplaced_pages([*weights, self._program.kv_memory])

    def run(self, plan: StepPlan) -> StepAnswer:
        """Run one step. Raises `ValueError`, `TypeError` or `OverflowError` for a plan that cannot be run, `RingError`
        when a peer is gone."""
        self._steps += 1
        try:
            self._node.set_deadline(plan.deadline_s or self._launch.step_deadline_s)
            for seq in plan.seqs:
                if seq.init is not None:
                    self._begin(seq.slot, seq.init)
                if seq.pages:
                    self._program.append_pages(seq.slot, seq.pages)
            sequences = np.array([_native_row(seq) for seq in plan.seqs], dtype=np.int32).reshape(-1, 6)
            tokens = _concatenated(seq.tokens for seq in plan.seqs)
            targets = _concatenated(seq.prompt_logprobs for seq in plan.seqs)
            rows, *times = self._program.step(sequences, tokens, targets, plan.step_id, plan.drafts or [])
        except Exception:
            # Whether a plan can be run shows when all of it has been looked at. To look at it twice, first without
            # changing anything, would cost each step what a refusal alone should cost.
            self._program.revert()
            raise
        return StepAnswer(self._results(plan, rows) if self._launch.rank == 0 else [], *times)

    def _begin(self, slot: int, init: SlotInit) -> None:
        # Every rank must refuse it, and only the first one has the board.
        if init.sampling.masked and self._launch.mask_fd < 0:
            raise ValueError("a masked sequence needs a mask board, and this group has none")
        self._program.init_slot(slot, slot_settings(init))

    def _results(self, plan: StepPlan, rows: list[NativeRow]) -> list[SeqResult]:
        for seq in plan.seqs:
            if seq.init is not None:
                self._wants_logprobs[seq.slot] = seq.init.sampling.logprobs >= 0
                self._names_tokens[seq.slot] = bool(seq.init.sampling.token_ids_logprob)
        sampled: list[list[SampledToken]] = [[] for _ in plan.seqs]
        prompts: list[list[TokenLogprobs]] = [[] for _ in plan.seqs]
        for index, sample, target in rows:
            if sample is not None:
                wanted = self._wants_logprobs[plan.seqs[index].slot]
                sampled[index].append(SampledToken(sample[0], TokenLogprobs(*sample) if wanted else None))
            if target is not None:
                prompts[index].append(TokenLogprobs(*target))
        results = []
        for tokens, of_prompt in zip(sampled, prompts, strict=True):
            first, *following = tokens or [SampledToken(-1)]
            results.append(SeqResult(first.token, first.logprobs, of_prompt, following=following))
        for index, values in self._program.pooled:
            results[index] = msgspec.structs.replace(results[index], embedding=values)
        for index in self._program.nan_sequences:
            results[index] = msgspec.structs.replace(results[index], nan=True)
        for index in self._program.dropped_sequences:
            results[index] = msgspec.structs.replace(results[index], dropped=True)
        for index, seq in enumerate(plan.seqs):
            if seq.sample and self._names_tokens[seq.slot]:
                named = self._program.token_logprobs(seq.slot)
                results[index] = msgspec.structs.replace(results[index], token_logprobs=named)
        return results


def _builder(launch: Launch, node: NodeContext, config: ModelConfig, part: RankPart) -> ProgramBuilder:
    limits = ProgramLimits(
        max_step_tokens=launch.max_step_tokens,
        max_logit_rows=0 if launch.settings.pooled else launch.max_logit_rows,
        max_slots=launch.max_running_requests,
        pages_per_slot=_pages_per_slot(launch),
        num_pages=launch.num_pages,
    )
    ranks = Ranks(part.partition.shares, launch.rank, node.ring.slot_bytes if node.ring else 0)
    builder = ProgramBuilder(ProgramSetup(config.decoder.shape(part), limits, ranks, launch.settings))
    config.decoder.forward(builder, part)
    return builder


def _build(
    builder: ProgramBuilder, launch: Launch, node: NodeContext, part: RankPart, weights: Weights
) -> Program | ReferenceProgram:
    if launch.backend == "native":
        return make_program(builder.setup, builder.fused(), node.team, node.ring, weights.native)
    # It brings torch, which takes a second to import and is not installed everywhere.
    from numaserve.workers.process.reference import make_reference  # noqa: PLC0415

    return make_reference(builder, launch, part, weights)


def _pages_per_slot(launch: Launch) -> int:
    return -(-launch.context_length // PAGE_SIZE)


def _native_row(seq: SeqPlan) -> tuple[int, int, int, bool, int, int]:
    count = 1 if seq.from_previous else len(seq.tokens)
    end = END_SAMPLE if seq.sample else END_POOL if seq.pool else 0
    return (seq.slot, seq.start, count, seq.from_previous, end, len(seq.prompt_logprobs))


def _concatenated(parts: Iterable[list[int]]) -> npt.NDArray[np.int32]:
    return np.fromiter(itertools.chain.from_iterable(parts), dtype=np.int32)


def by_operation(steps: int, nodes: Iterable[NodeProfile]) -> list[OperationProfile]:
    """The nodes of one name and format together, in order of first use. Every node runs once a step."""
    rows: dict[tuple[str, str], list[tuple[int, ...]]] = {}
    for name, format, *figures in nodes:
        rows.setdefault((name, format), []).append((steps, *figures))
    return [OperationProfile(*key, *map(sum, zip(*each, strict=True))) for key, each in rows.items()]
