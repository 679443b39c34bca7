"""The caches of a rank's program: keys and values in pages, and states of slots."""

from dataclasses import dataclass
from typing import NamedTuple

from numaserve.workers.interface.windows import ALL, Window

SCALE_COLUMNS = 16  # of a native matrix of a value head that share a scale
MAX_KEY_DIM, MAX_CONV_TAPS = 512, 8  # the maxima that the kernels of recurrent layers support


@dataclass(frozen=True)
class Heads:
    """The heads of one rank, and the keys and values that they share.

    All KV heads of a model have the same number of query heads, in order. Other ranks may have some of the query heads
    of this rank's KV heads. A latent cache has one KV head, and the first dimensions of a key are its value.
    """

    query: int
    kv: int
    dim: int  # of a key
    value_dim: int = 0  # of a value; 0: as many as of a key
    is_latent: bool = False
    bounds: tuple[int, ...] = ()  # world size + 1 boundaries of the ranks' query heads
    lower: int = 0  # query heads of these KV heads that lower ranks have
    higher: int = 0  # those that higher ranks have

    @property
    def values(self) -> int:
        """Dimensions of a value."""
        return self.value_dim or self.dim


@dataclass(frozen=True)
class DeltaHeads:
    """The heads of a rank in layers with the gated delta rule. Consecutive value heads share a key head.

    In layers with a state space keys are B, queries C, and values the inputs x. `gates`: numbers of a token that each
    value head has besides.
    """

    keys: int
    values: int
    key_dim: int
    value_dim: int
    gates: int = 2

    @property
    def convolved(self) -> int:
        """Columns of queries, keys and values."""
        return 2 * self.keys * self.key_dim + self.values * self.value_dim

    @property
    def replayed(self) -> int:
        """Numbers with which a draft token is applied again: its keys, values and gates."""
        return self.keys * self.key_dim + self.values * (self.value_dim + self.gates)

    @property
    def kept(self) -> int:
        """Numbers of a state: a matrix of each value head, and its scales."""
        return self.values * (self.key_dim * self.value_dim + self.scales)

    @property
    def scales(self) -> int:
        """Scales of a head's matrix: one for each `SCALE_COLUMNS` of its columns, which a core works on alone."""
        return -(-self.value_dim // SCALE_COLUMNS)


@dataclass(frozen=True)
class CacheKind:
    """Layers with equal heads and an equal window."""

    heads: Heads
    window: Window = ALL
    layers: int = 1


@dataclass(frozen=True)
class StateKind:
    """Layers that keep the same number of bytes for each slot, for each page, and for each draft token of a slot.

    A sequence goes on from the states of its pages, where these have some. Otherwise it has snapshots and draft tokens.
    """

    slot_bytes: int
    page_bytes: int = 0
    layers: int = 1
    draft_bytes: int = 0

    @property
    def of_sequences(self) -> bool:
        """Whether a sequence cannot go on without these states."""
        return self.page_bytes == 0


class CacheIndex(NamedTuple):
    """The cache of a layer: its kind, and its number among the layers of that kind."""

    kind: int
    layer: int
