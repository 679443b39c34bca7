"""The part of a model that a rank holds, and the Programs that run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from numaserve.kernels import Program
from numaserve.workers.interface.capacity import PAGE_SIZE, Capacity
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import Launch, OperationProfile
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.layers.forward import Forward
from numaserve.workers.models.load import open_model, read_config
from numaserve.workers.planning.needs import kv_bytes
from numaserve.workers.planning.reference import draft_bytes, page_bytes, window_page_bytes
from numaserve.workers.process.node import NodeContext
from numaserve.workers.process.populate import PAGES_AHEAD, Population
from numaserve.workers.program.cost import StepWork, merged_terms
from numaserve.workers.program.native import make_program, native_rows
from numaserve.workers.program.outside import OutsideRows
from numaserve.workers.program.parts import StepPart, parts_of
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.setup import ProgramSetup, Ranks
from numaserve.workers.weights.cache.loading import LoadedWeights, RankLoader

if TYPE_CHECKING:
    from numaserve.workers.models.spec import ModelConfig
    from numaserve.workers.program.reference.program import ReferenceProgram

# Name, format, nanoseconds, nanoseconds of waiting for other ranks, bytes of weights, bytes read, operations.
NodeProfile = tuple[str, str, int, int, int, int, int]


class RankWeights:
    """A model's weights on a rank; there are none until `load` has loaded them."""

    loaded: LoadedWeights

    def __init__(self, launch: Launch, served: ModelConfig | None = None) -> None:
        """Read the configuration, of a draft model if there is a `served` one. Raises `OperatorError` for a checkpoint
        that cannot be served."""
        self.launch = launch
        self._files = open_model(Path(launch.model), launch.settings.mmproj)
        config = read_config(self._files, launch.settings)
        self.config = config if served is None else config.drafting_for(served)
        self.part = self.config.partition(launch.weights, launch.settings).ranks[launch.rank]
        self.weight_bytes = self.part.weight_bytes()
        kept = launch.backend, launch.settings.kv_cache_dtype
        parts = window_page_bytes(self.config, self.part, *kept)
        page = page_bytes(self.config, self.part, *kept)  # of all Programs of the model
        decoder, part, capacity = self.config.decoder, self.part, launch.capacity
        self.kv_bytes = kv_bytes(page, parts, capacity.table_pages)
        drafts = capacity.max_drafts * draft_bytes(self.config, part, launch.backend)
        states = capacity.max_slots * (decoder.state_bytes(part) + drafts)
        self.state_bytes = states + capacity.num_snapshots * decoder.snapshot_bytes(part)

    def load(self, node: NodeContext, report: Callable[[int], None]) -> None:
        """Load the weights; `report` gets the bytes of packed weights that are done."""
        # Whole pages: a plan's positions are checked against a slot's page table, not against the context length.
        tower = self.config.decoder.tower
        positions = max(self.launch.capacity.pages_per_slot * PAGE_SIZE, 0 if tower is None else tower.patches)
        loader = RankLoader(self._files, self.config, self.part, positions, self.launch.weights_cache)
        del self._files  # the tables of a large checkpoint take tens of megabytes
        self.loaded = loader.load(node.team, report)


class RankProgram:
    """A Program with its KV cache, for loaded weights."""

    program: Program | ReferenceProgram
    outside: OutsideRows
    parts: list[StepPart]  # of a step, the smallest ones
    shares: list[float]  # of the step's multiplies, in each part
    setup: ProgramSetup

    def __init__(
        self,
        held: RankWeights,
        model: Forward,
        node: NodeContext,
        limits: Capacity,
        lender: RankProgram | None = None,
        *,
        settings: ModelSettings | None = None,
        in_parts: StepWork | None = None,
    ) -> None:
        """Build the Program of `model`, which is the model of `held` or a part of it. Its `limits` are its own, below
        those of the deployment where it does less, and so are its `settings`, if it has some. With a `lender` it reads
        the KV cache of that Program. Steps of the work `in_parts` may run in `parts`."""
        launch = held.launch
        ranks = Ranks(held.part.partition.shares, launch.rank, node.ring.slot_bytes if node.ring else 0)
        self.setup = ProgramSetup(model.shape(held.part), limits, ranks, settings or launch.settings)
        builder = ProgramBuilder(self.setup)
        model.forward(builder, held.part)
        costs = builder.costs()
        self.terms, self._moves = merged_terms(costs), [(cost.name, cost.computes, cost.moves) for cost in costs]
        self.parts, self.shares = ([], []) if in_parts is None else parts_of(builder.costed(), in_parts)
        self._lent = lender is not None
        # The first prompt after a restart may be read from disk whole, much faster than memory is touched.
        self._least_ahead = limits.pages_per_slot if launch.disk_folder else 0
        self.program, self.outside = _build(builder, held, node, None if lender is None else lender.program)

    @property
    def limits(self) -> Capacity:
        """The sizes that the Program is made for."""
        return self.setup.limits

    def operations(self) -> list[OperationProfile]:
        """Return the cost of the Program's operations since load."""
        steps, *_ = totals = self.program.shape_totals
        found = by_operation(steps, self.program.profile())
        moved = Counter[tuple[str, str]]()
        for name, computes, moves in self._moves:
            moved[name, computes] += moves.of(totals)
        return [replace(each, moved_bytes=moved[each.name, each.format]) for each in found]

    def table_memory(self) -> list[list[tuple[int, int]]]:
        """Return address and bytes of each layer's KV cache, by page table; none of a cache that is lent."""
        setup = self.setup
        found: list[list[tuple[int, int]]] = [[] for _ in setup.limits.table_pages]
        if not self._lent:
            kinds = zip(setup.shape.caches, setup.page_tables, strict=True)
            tables = [table for kind, table in kinds for _ in range(kind.layers)]
            for table, layer in zip(tables, self.program.kv_memory, strict=True):
                found[table].append(layer)
        return found

    def kv_populations(self) -> list[Population]:
        """Return the tasks that touch the KV cache's memory ahead of its use, one for each page table."""
        if self._lent:
            return []
        common, *windows = zip(self.table_memory(), self.setup.limits.table_pages, strict=True)
        whole = Population(*common, pages_ahead=max(PAGES_AHEAD, self._least_ahead))
        return [whole, *(Population(*each, window) for window, each in enumerate(windows))]


def _build(
    builder: ProgramBuilder, held: RankWeights, node: NodeContext, lender: Any
) -> tuple[Program | ReferenceProgram, OutsideRows]:
    """`lender` is a Program of the same backend, or None."""
    operations, weights = builder.fused(), held.loaded.weights
    if held.launch.backend == "native":
        program = make_program(builder.setup, operations, node.team, node.ring, weights.native, lender=lender)
        if held.launch.blocking:
            _set_blocking(program, held.launch.blocking)
        return program, native_rows(program, operations)
    # The reference imports torch, which takes a second and is not installed everywhere.
    from numaserve.workers.process.reference import make_reference  # noqa: PLC0415

    reference = make_reference(builder.setup, operations, held.launch, held.part, weights, lender=lender)
    return reference, reference.outside


def _set_blocking(program: Program, sizes: Mapping[str, int]) -> None:
    try:
        program.blocking = sizes
    except ValueError as error:
        raise OperatorError(
            f"--blocking: {error}; write the file again with `numaserve bench kernels --sweep --write FILE`"
        ) from None


def by_operation(steps: int, nodes: Iterable[NodeProfile]) -> list[OperationProfile]:
    """Combine the nodes of the same name and format, in order of first use. Every node runs once per step."""
    rows: dict[tuple[str, str], list[tuple[int, ...]]] = {}
    for name, format, *figures in nodes:
        rows.setdefault((name, format), []).append((steps, *figures))
    return [OperationProfile(*key, *map(sum, zip(*each, strict=True))) for key, each in rows.items()]
