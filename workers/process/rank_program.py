"""One model on a rank: its packed weights and the Program that runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from numaserve.kernels import Program
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.models.load import open_model, read_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.reference import page_bytes
from numaserve.workers.process.node import NodeContext
from numaserve.workers.process.populate import Population
from numaserve.workers.program.builder import ProgramBuilder
from numaserve.workers.program.cost import merged_terms
from numaserve.workers.program.native import make_program
from numaserve.workers.program.setup import ProgramLimits, ProgramSetup, Ranks
from numaserve.workers.protocol import PAGE_SIZE, Launch, OperationProfile
from numaserve.workers.weights.cache.loading import RankLoader
from numaserve.workers.weights.weights import Weights

if TYPE_CHECKING:
    from numaserve.workers.program.reference.program import ReferenceProgram

# Name, format, nanoseconds, of which waiting for other ranks, bytes of weights, bytes read, operations.
NodeProfile = tuple[str, str, int, int, int, int, int]


class RankProgram:
    """A model that `load` has loaded: until then there is no Program."""

    program: Program | ReferenceProgram

    def __init__(self, launch: Launch) -> None:
        """Read the configuration. Raises `OperatorError` for a checkpoint that cannot be served."""
        self._launch = launch
        self._files = open_model(Path(launch.model))
        self.config = read_config(self._files, pooled=launch.settings.pooled)
        self._part = self.config.partition(launch.weights, launch.settings).ranks[launch.rank]
        self.weight_bytes = self._part.weight_bytes()
        kept = launch.backend, launch.settings.kv_cache_dtype
        self.kv_bytes = page_bytes(self.config, self._part, *kept) * launch.num_pages

    def load(self, node: NodeContext, report: Callable[[int], None]) -> None:
        """Load and build; `report` gets bytes of packed weights that are done."""
        launch = self._launch
        # Whole pages: a slot's page table, not the context length, is what a plan's positions are checked against.
        positions = _pages_per_slot(launch) * PAGE_SIZE
        loader = RankLoader(self._files, self.config, self._part, positions, launch.weights_cache)
        self.loaded = loader.load(node.team, report)
        self.weights = self.loaded.weights
        builder = _builder(launch, node, self.config, self._part)
        self.terms = merged_terms(builder.costs())
        self.program = _build(builder, launch, node, self._part, self.weights)

    def operations(self) -> list[OperationProfile]:
        """The cost of the Program's operations since load."""
        return by_operation(self.program.totals[0], self.program.profile())

    def kv_population(self) -> Population:
        """The task that touches the KV cache's memory ahead of its use."""
        address, nbytes = self.program.kv_memory  # with what rounds it up, or none on a rank without heads
        layers = self.config.num_layers
        return Population(address, min(nbytes, self.kv_bytes) // layers, layers, self._launch.num_pages)

    def memory(self) -> list[tuple[int, int]]:
        """(address, bytes) of weights and KV cache."""
        return [*((matrix.address, matrix.nbytes) for matrix in self.weights.matrices), self.program.kv_memory]


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


def by_operation(steps: int, nodes: Iterable[NodeProfile]) -> list[OperationProfile]:
    """The nodes of one name and format together, in order of first use. Every node runs once a step."""
    rows: dict[tuple[str, str], list[tuple[int, ...]]] = {}
    for name, format, *figures in nodes:
        rows.setdefault((name, format), []).append((steps, *figures))
    return [OperationProfile(*key, *map(sum, zip(*each, strict=True))) for key, each in rows.items()]
