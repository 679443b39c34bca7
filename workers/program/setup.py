"""The sizes that a forward pass is made for, one rank's part of the model, and the ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, ModelSettings
from numaserve.workers.interface.windows import ALL, Window, distinct
from numaserve.workers.program.caches import CacheKind, StateKind
from numaserve.workers.program.context_parallel import ContextParallel, context_parallel


@dataclass(frozen=True)
class RankShape:
    """The sizes of one rank's part of a model."""

    hidden_size: int
    vocab_bounds: Sequence[int]  # world size + 1 boundaries of the ranks' parts of the vocabulary
    caches: tuple[CacheKind, ...] = ()
    states: tuple[StateKind, ...] = ()
    extra_tokens: int = 0  # after the vocabulary: a step may have them, their embedding is zero, and none is sampled


@dataclass(frozen=True)
class Ranks:
    """The ranks that run a program together. `cores`: threads of each; `slot_bytes`: the largest part that a rank can
    have of a collective, where there are several."""

    cores: tuple[int, ...]
    rank: int = 0
    slot_bytes: int = 0

    @property
    def world(self) -> int:
        """The number of ranks."""
        return len(self.cores)

    @property
    def threads(self) -> int:
        """Threads of this rank."""
        return self.cores[self.rank]

    @property
    def lanes(self) -> int:
        """Threads of each rank that take part in collectives."""
        return min(self.cores)

    @property
    def overlaps_sums(self) -> bool:
        """Whether large sums overlap the products before them. Two ranks need no shares of sums. Only the lanes take
        part, so a rank may have at most a sixteenth more threads than lanes, which are then idle."""
        most = max(self.cores)
        return self.world > 2 and 16 * (most - self.lanes) <= most


@dataclass(frozen=True)
class ProgramSetup:
    """The inputs that one rank's program is made from."""

    shape: RankShape
    limits: Capacity  # of this Program, which need not be those of others in the rank
    ranks: Ranks
    settings: ModelSettings = DEFAULT_SETTINGS

    @cached_property
    def table_windows(self) -> list[Window]:
        """The window of each page table of a sequence, of which the first one has none."""
        windows = distinct(kind.window for kind in self.shape.caches) if self.limits.window_pages else []
        return [ALL, *windows]

    @cached_property
    def page_tables(self) -> list[int]:
        """The number of the page table of each kind of cache."""
        numbers = {window: number for number, window in enumerate(self.table_windows)}
        return [numbers.get(kind.window, 0) for kind in self.shape.caches]

    @cached_property
    def context_parallel(self) -> ContextParallel | None:
        """The division of the latents of long sequences among the ranks; None: they are not divided.

        Layers with another kind of cache would need these sequences whole, so all layers must have the same latents.
        """
        if self.ranks.world == 1 or len(self.shape.caches) != 1 or not self.shape.caches[0].heads.is_latent:
            return None
        heads = self.shape.caches[0].heads
        return context_parallel(heads, self.ranks.slot_bytes, self.settings.context_parallel_from)
