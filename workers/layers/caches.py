"""The caches that layers declare. Plans, programs and checks follow from them.

A mixer declares one cache. Layers with equal declarations are of one kind, and are numbered within it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.layers.axes import Axis
from numaserve.workers.program.caches import CacheIndex, CacheKind, Heads, StateKind
from numaserve.workers.program.cost import kv_bytes_per_token

if TYPE_CHECKING:
    from numaserve.workers.interface.settings import KvCacheDtype
    from numaserve.workers.layers.partition import RankPart

_LINE_BYTES = 64


@dataclass(frozen=True)
class Cache(ABC):
    """The memory that a layer keeps on each rank, for each page and for each slot."""

    @property
    def is_paged(self) -> bool:
        """Whether a sequence can continue from the pages of another one alone."""
        return True

    def page_bytes(self, part: RankPart, dtype: KvCacheDtype) -> int:
        """Bytes of a page. Raises `OperatorError` for a dtype that the layer does not cache in."""
        return 0

    def slot_bytes(self, part: RankPart) -> int:
        """Bytes of a slot, whatever the length of its sequence."""
        return 0

    @abstractmethod
    def kind(self, part: RankPart, layers: int) -> CacheKind | StateKind:
        """The kind of `layers` layers with this declaration."""


@dataclass(frozen=True)
class Paged(Cache):
    """Keys and values of heads, in pages.

    `window` is the number of tokens that a token looks back at, itself included; None: all. With `chunked` a token sees
    the tokens of its chunk of that many.
    """

    queries: Axis
    keys: Axis
    head_dim: int
    window: int | None = None
    chunked: bool = False

    def page_bytes(self, part: RankPart, dtype: KvCacheDtype) -> int:
        """See `Cache`."""
        return PAGE_SIZE * kv_bytes_per_token(self._heads(part), dtype)

    def kind(self, part: RankPart, layers: int) -> CacheKind:
        """See `Cache`."""
        return CacheKind(self._heads(part), self.window or 0, self.chunked, layers)

    def _heads(self, part: RankPart) -> Heads:
        bounds = tuple(part.partition.bounds(self.queries))
        return Heads(len(part.along(self.queries)), len(part.along(self.keys)), self.head_dim, bounds=bounds)


@dataclass(frozen=True)
class Latent(Cache):
    """Latents of all heads, in pages: a key of `dim` dimensions, of which the first `value_dim` are the value."""

    queries: Axis
    keys: Axis
    dim: int
    value_dim: int

    def page_bytes(self, part: RankPart, dtype: KvCacheDtype) -> int:
        """A latent is key and value at once."""
        if dtype != "bf16":
            raise OperatorError(
                f"--kv-cache-dtype {dtype}: this model caches latents, which must be bf16; leave the option out"
            )
        return PAGE_SIZE * kv_bytes_per_token(self._heads(part), dtype)

    def kind(self, part: RankPart, layers: int) -> CacheKind:
        """See `Cache`."""
        return CacheKind(self._heads(part), layers=layers)

    def _heads(self, part: RankPart) -> Heads:
        bounds = tuple(part.partition.bounds(self.queries))
        return Heads(len(part.along(self.queries)), len(part.along(self.keys)), self.dim, self.value_dim, bounds)


@dataclass(frozen=True)
class State(Cache):
    """A state of constant size for each slot: `rows` rows of a rank's part of `columns`, in fp32.

    Pages alone do not continue a sequence: without the state of its last token it begins again at position 0.
    """

    rows: int
    columns: Axis

    @property
    def is_paged(self) -> bool:
        """See `Cache`."""
        return False

    def slot_bytes(self, part: RankPart) -> int:
        """See `Cache`."""
        nbytes = 4 * self.rows * len(part.along(self.columns))
        return -(-nbytes // _LINE_BYTES) * _LINE_BYTES

    def kind(self, part: RankPart, layers: int) -> StateKind:
        """See `Cache`."""
        return StateKind(self.slot_bytes(part), layers=layers)


@dataclass(frozen=True)
class HiddenStates(Cache):
    """Rows of bf16 for each slot's last `recent` tokens, and for each page's last token, whole on every rank."""

    columns: int
    recent: int

    def page_bytes(self, part: RankPart, dtype: KvCacheDtype) -> int:
        """See `Cache`."""
        return self._row_bytes

    def slot_bytes(self, part: RankPart) -> int:
        """See `Cache`."""
        return self.recent * self._row_bytes

    def kind(self, part: RankPart, layers: int) -> StateKind:
        """See `Cache`."""
        return StateKind(self.recent * self._row_bytes, self._row_bytes, layers)

    @property
    def _row_bytes(self) -> int:
        return -(-2 * self.columns // _LINE_BYTES) * _LINE_BYTES


@dataclass(frozen=True)
class NumberedCaches:
    """The caches of a program's layers by kind, and the place of each layer, in order."""

    caches: tuple[CacheKind, ...]
    states: tuple[StateKind, ...]
    places: tuple[CacheIndex, ...]


def numbered(declared: Sequence[Cache], part: RankPart) -> NumberedCaches:
    """Number layers within their kinds. Kinds are in the order of their first layers."""
    kinds = {cache: cache.kind(part, layers) for cache, layers in Counter(declared).items()}
    caches = [cache for cache, kind in kinds.items() if isinstance(kind, CacheKind)]
    states = [cache for cache, kind in kinds.items() if isinstance(kind, StateKind)]
    seen: Counter[Cache] = Counter()
    places = []
    for cache in declared:
        of = caches if cache in caches else states
        places.append(CacheIndex(of.index(cache), seen[cache]))
        seen[cache] += 1
    return NumberedCaches(
        tuple(kind for kind in kinds.values() if isinstance(kind, CacheKind)),
        tuple(kind for kind in kinds.values() if isinstance(kind, StateKind)),
        tuple(places),
    )
