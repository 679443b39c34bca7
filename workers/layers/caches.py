"""The caches that layers declare. Plans, programs and checks follow from them.

A mixer declares one cache. Layers with equal declarations are of one kind, and are numbered within it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.interface.windows import ALL, Window
from numaserve.workers.layers.axes import Axis
from numaserve.workers.program.caches import CacheIndex, CacheKind, DeltaHeads, Heads, StateKind
from numaserve.workers.program.cost import BF16, FP32, kv_bytes_per_token
from numaserve.workers.program.handles import round_up

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

    @property
    def span(self) -> Window:
        """The window of tokens that the layer looks back at."""
        return ALL

    def page_bytes(self, part: RankPart, dtype: KvCacheDtype) -> int:
        """Bytes of a page. Raises `OperatorError` for a dtype that the layer does not cache in."""
        return 0

    def slot_bytes(self, part: RankPart) -> int:
        """Bytes of a slot, whatever the length of its sequence."""
        return 0

    def state_bytes(self, part: RankPart) -> int:
        """Bytes of a slot that a sequence needs besides its pages to continue."""
        return 0 if self.is_paged else self.slot_bytes(part)

    def snapshot_bytes(self, part: RankPart) -> int:
        """Bytes of a copy of a slot's state from which another sequence can continue."""
        return self.state_bytes(part)

    def draft_bytes(self, part: RankPart) -> int:
        """Bytes of a draft token of a slot, with which it is applied again once it is accepted."""
        return 0

    @abstractmethod
    def kind(self, part: RankPart, layers: int) -> CacheKind | StateKind | None:
        """The kind of `layers` layers with this declaration; None: they have no cache of their own."""


@dataclass(frozen=True)
class HeadCache(Cache):
    """Keys of heads in pages, with their values: `dim` dimensions of each key, `value_dim` of each value."""

    queries: Axis
    keys: Axis
    dim: int
    value_dim: int

    def page_bytes(self, part: RankPart, dtype: KvCacheDtype) -> int:
        """See `Cache`."""
        return PAGE_SIZE * kv_bytes_per_token(self._heads(part), dtype)

    def kind(self, part: RankPart, layers: int) -> CacheKind:
        """See `Cache`."""
        return CacheKind(self._heads(part), layers=layers)

    def _heads(self, part: RankPart) -> Heads:
        bounds = part.partition.bounds(self.queries)
        query, kv = part.along(self.queries), part.along(self.keys)
        heads = Heads(len(query), len(kv), self.dim, self.value_dim, bounds=bounds)
        return read_by(heads, query, kv, self.queries.count // self.keys.count)


def read_by(heads: Heads, query: range, kv: range, group: int) -> Heads:
    """Return `heads` for other query heads of a rank, with `group` of them in the model for each of its KV heads."""
    if not kv:
        return replace(heads, query=len(query), lower=0, higher=0)
    lower, higher = query.start - kv.start * group, kv.stop * group - query.stop
    return replace(heads, query=len(query), lower=lower, higher=higher)


@dataclass(frozen=True)
class Paged(HeadCache):
    """Keys and values of heads, in pages.

    `window` is the number of tokens that a token looks back at, itself included; None: all. With `chunked` a token sees
    the tokens of its chunk of that many. With `bidirectional` it sees that many on either side. With `images` a token
    of an image sees the whole image.
    """

    window: int | None = None
    chunked: bool = False
    bidirectional: bool = False
    images: bool = False

    @property
    def span(self) -> Window:
        """See `Cache`."""
        return Window(self.window or 0, self.chunked, self.bidirectional, self.images)

    def kind(self, part: RankPart, layers: int) -> CacheKind:
        """See `Cache`."""
        return CacheKind(self._heads(part), self.span, layers)


@dataclass(frozen=True)
class Borrowed(Cache):
    """The cache of the last layer before with the declaration `of`. Nothing is stored in it."""

    of: Paged

    def kind(self, part: RankPart, layers: int) -> None:
        """See `Cache`."""


@dataclass(frozen=True)
class Latent(HeadCache):
    """Latents of all heads, in pages: the first `value_dim` dimensions of a key are its value too."""

    def page_bytes(self, part: RankPart, dtype: KvCacheDtype) -> int:
        """See `Cache`."""
        if dtype != "bf16":
            raise OperatorError(
                f"--kv-cache-dtype {dtype}: this model caches latents, which must be bf16; leave the option out"
            )
        return super().page_bytes(part, dtype)

    def _heads(self, part: RankPart) -> Heads:
        # One head of latents: its query heads are those of the rank, or those of all ranks for divided sequences.
        return replace(super()._heads(part), is_latent=True, lower=0, higher=0)


@dataclass(frozen=True)
class StateCache(Cache, ABC):
    """Memory besides keys and values, whatever the data type of these."""

    def kind(self, part: RankPart, layers: int) -> StateKind:
        """See `Cache`."""
        return StateKind(self.slot_bytes(part), self.page_bytes(part, "bf16"), layers, self.draft_bytes(part))


@dataclass(frozen=True)
class State(StateCache):
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
        return round_up(FP32 * self.rows * len(part.along(self.columns)), _LINE_BYTES)

    def draft_bytes(self, part: RankPart) -> int:
        """See `Cache`."""
        return round_up(FP32 * len(part.along(self.columns)), _LINE_BYTES)


@dataclass(frozen=True)
class DeltaState(StateCache):
    """The state of a layer with the gated delta rule or a state space, in fp32: the last `behind` inputs of its
    convolution, then a matrix of key_dim * value_dim for each value head, which has `gates` numbers of each token."""

    keys: Axis
    values: Axis
    key_dim: int
    value_dim: int
    behind: int
    gates: int = 2

    @property
    def is_paged(self) -> bool:
        """See `Cache`."""
        return False

    def heads(self, part: RankPart) -> DeltaHeads:
        """The heads of a rank."""
        keys, values = len(part.along(self.keys)), len(part.along(self.values))
        return DeltaHeads(keys, values, self.key_dim, self.value_dim, self.gates)

    def matrices_at(self, part: RankPart) -> int:
        """Bytes of a slot before its matrices."""
        return round_up(FP32 * self.behind * self.heads(part).convolved, _LINE_BYTES)

    def slot_bytes(self, part: RankPart) -> int:
        """See `Cache`."""
        return self.matrices_at(part) + round_up(FP32 * self.heads(part).kept, _LINE_BYTES)

    def draft_bytes(self, part: RankPart) -> int:
        """See `Cache`. Inputs of the convolution, and then what the rule takes."""
        heads = self.heads(part)
        return round_up(FP32 * heads.convolved, _LINE_BYTES) + round_up(FP32 * heads.replayed, _LINE_BYTES)


@dataclass(frozen=True)
class HiddenStates(StateCache):
    """Rows of bf16 for each slot's last `recent` tokens, and for each page's last token, whole on every rank."""

    columns: int
    recent: int

    def page_bytes(self, part: RankPart, dtype: KvCacheDtype) -> int:
        """See `Cache`."""
        return round_up(BF16 * self.columns, _LINE_BYTES)

    def slot_bytes(self, part: RankPart) -> int:
        """See `Cache`."""
        return self.recent * self.page_bytes(part, "bf16")


@dataclass(frozen=True)
class NumberedCaches:
    """The caches of a program's layers by kind, and the place of each layer, in order."""

    caches: tuple[CacheKind, ...]
    states: tuple[StateKind, ...]
    places: tuple[CacheIndex, ...]


def numbered(declared: Sequence[Cache], part: RankPart) -> NumberedCaches:
    """Number layers within their kinds. Kinds are in the order of their first layers."""
    kinds = {cache: cache.kind(part, layers) for cache, layers in Counter(declared).items()}
    caches = {cache: kind for cache, kind in kinds.items() if isinstance(kind, CacheKind)}
    states = {cache: kind for cache, kind in kinds.items() if isinstance(kind, StateKind)}
    number = {cache: index for group in (caches, states) for index, cache in enumerate(group)}
    seen: Counter[Cache] = Counter()
    places = []
    for cache in declared:
        if isinstance(cache, Borrowed):
            places.append(CacheIndex(number[cache.of], seen[cache.of] - 1))
        else:
            places.append(CacheIndex(number[cache], seen[cache]))
            seen[cache] += 1
    return NumberedCaches(tuple(caches.values()), tuple(states.values()), tuple(places))
