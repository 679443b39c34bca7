"""The matrices that a Program works on, and where they lie in its arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from numaserve.kernels import Vector

PAD = 32
ACTIVATION_TILE_ROWS = 16  # that a product reads at once, however many of them are wanted
CACHE_LINE = 64
ALIGNMENT = 4096
PARTIAL_EXTRA = 16  # floats that follow the values of a partial result of attention: its maximum, its sum, and padding


def padded(count: int) -> int:
    """`count` rounded up to what the kernels pad rows and columns to."""
    return -(-count // PAD) * PAD


@dataclass(eq=False)
class Buffer:
    """A [rows, cols] matrix of the arena; alive from the node that writes it first to the one that reads it last."""

    rows: int
    cols: int
    itemsize: int
    first_use: int = -1
    last_use: int = -1
    offset: int = 0
    collective: int = -1  # with several ranks: which of a step's collectives it is this rank's part of

    @property
    def ld(self) -> int:
        """Elements from row to row."""
        return padded(self.cols)

    @property
    def whole(self) -> Buffer:
        """What has its memory: itself, unless it is a part of another."""
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of arena it needs."""
        return padded(self.rows) * self.ld * self.itemsize

    @property
    def place(self) -> tuple[int, int, int]:
        """What native code is told: offset, leading dimension, collective."""
        return (self.offset, self.ld, self.collective)


class Tensor(Buffer):
    """Activations of this rank."""


class Columns(Tensor):
    """Columns of another tensor, from `first` on: it has no memory of its own."""

    def __init__(self, of: Tensor, first: int, cols: int) -> None:
        super().__init__(of.rows, cols, of.itemsize)
        self._of, self._first = of, first

    @property
    def whole(self) -> Buffer:
        """The tensor."""
        return self._of.whole

    @property
    def place(self) -> tuple[int, int, int]:
        """Within the tensor's."""
        offset, ld, collective = self._of.place
        return (offset + self._first * self.itemsize, ld, collective)


@dataclass(eq=False)
class Operand(Tensor):
    """Activations, bf16, that a matrix product reads: from row to row an odd number of cache lines.

    With a power of two, say, the rows of a tile would all fall into the same set of the L1 cache.
    """

    quantized: dict[int, Quantized] = field(default_factory=dict)  # the same in int8, in groups, once products want it
    rows_per_token: int = 1
    norm_index: int = -1  # of the node that makes it, if that is a norm: it can write it in int8 too, `by_norm`
    by_norm: Quantized | None = None

    @property
    def ld(self) -> int:
        """Elements from row to row."""
        columns = padded(self.cols)
        return columns if columns // PAD % 2 == 1 else columns + PAD


@dataclass(eq=False)
class Quantized(Tensor):
    """Activations, int8, that a matrix product with int8 weights or groups of codes reads.

    A row, or each of its heads, is followed by its scale, or by the scale and the sum of each of its groups. From row
    to row, and from head to head, an odd number of cache lines, as for `Operand`.
    """

    group: int = 0
    heads: int = 1  # of a row; `cols` are of each of them

    @property
    def quantized_place(self) -> tuple[tuple[int, int, int], int, int]:
        """What native code is told: the place, columns, group."""
        return (self.place, self.cols, self.group)

    @property
    def ld(self) -> int:
        """Elements from row to row."""
        return _odd_lines(self.heads * self.head_ld)

    @property
    def head_ld(self) -> int:
        """Elements from head to head."""
        unit = self.group or CACHE_LINE
        groups = -(-self.cols // unit)
        return _odd_lines(groups * unit + (8 * groups if self.group else 4))


class Residual(Buffer):
    """The residual stream, fp32, equal on all ranks."""


@dataclass(eq=False)
class Partial(Buffer):
    """This rank's part, fp32, of a sum over the ranks that is still to be taken.

    With one rank the sum is this part, and the product that makes it may add it to the residual stream `into` itself.
    """

    into: Residual | None = None
    bias: Vector | None = None


class Logits(Buffer):
    """Logits of this rank's part of the vocabulary, fp32, of the rows that want a sample."""

    softcap: float = 0.0


def in_arena(buffer: Buffer) -> bool:
    """Whether it needs memory there: a collective's buffer lies in the ring."""
    return buffer.collective < 0 and not (isinstance(buffer, Partial) and buffer.into is not None)


def plan_arena(buffers: Sequence[Buffer]) -> int:
    """Give every buffer an offset such that buffers alive at the same time do not overlap; returns the arena's size.

    Largest first, each at the lowest offset that is free for its whole life: within a few percent of the optimum on
    such straight-line programs (Pisarchyk and Lee, 2020, "greedy by size").
    """
    placed: list[Buffer] = []
    for buffer in sorted(dict.fromkeys(buffers), key=lambda b: b.nbytes, reverse=True):
        rivals = [p for p in placed if p.first_use <= buffer.last_use and buffer.first_use <= p.last_use]
        offset = 0
        for rival in sorted(rivals, key=lambda p: p.offset):
            if offset + buffer.nbytes <= rival.offset:
                break
            offset = max(offset, _aligned(rival.offset + rival.nbytes))
        buffer.offset = offset
        placed.append(buffer)
    return max((_aligned(b.offset + b.nbytes) for b in placed), default=0)


def _odd_lines(nbytes: int) -> int:
    lines = -(-nbytes // CACHE_LINE)
    return CACHE_LINE * (lines + 1 - lines % 2)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
