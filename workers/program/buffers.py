"""The matrices that a forward pass works on: descriptions of them, distinguished by identity."""

from __future__ import annotations

from dataclasses import dataclass

PAD = 32
ACTIVATION_TILE_ROWS = 16  # that a product reads at once, however many of them are wanted
CACHE_LINE = 64
GROUP_SCALE_BYTES = 16  # of each group of quantized activations, after their row
ATTENTION_BLOCK = 256  # tokens that attention takes together
ATTENTION_ROWS = 32  # query rows that attention takes together at most
CUT_SEQUENCES = 8  # the longest sequences, whose blocks several threads can attend to
PARTIAL_EXTRA = 16  # floats that follow the values of a partial result of attention: its maximum, its sum, and padding


def padded(count: int) -> int:
    """`count` rounded up to what the kernels pad rows and columns to."""
    return -(-count // PAD) * PAD


@dataclass(frozen=True, eq=False)
class Buffer:
    """A [rows, cols] matrix, row-major. `collective`: with several ranks it is this rank's part of a collective, and
    lies in the ring."""

    rows: int
    cols: int
    itemsize: int
    collective: bool = False

    @property
    def ld(self) -> int:
        """Elements from row to row."""
        return padded(self.cols)

    @property
    def nbytes(self) -> int:
        """Bytes of memory it needs."""
        return self.begin + padded(self.rows) * self.ld * self.itemsize

    @property
    def whole(self) -> Buffer:
        """The buffer whose memory it has: itself, unless it is a part of another."""
        return self

    @property
    def begin(self) -> int:
        """Bytes of that memory before its first element."""
        return 0


class Tensor(Buffer):
    """Activations of this rank."""


class Persistent(Tensor):
    """Rows that are filled in from outside between steps, and stay from step to step."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Columns(Tensor):
    """Columns of another tensor, from `first` on. It has no memory of its own."""

    of: Tensor
    first: int

    @property
    def ld(self) -> int:
        """Elements from row to row of the tensor."""
        return self.of.ld

    @property
    def whole(self) -> Buffer:
        """The tensor, or what that is a part of."""
        return self.of.whole

    @property
    def begin(self) -> int:
        """Bytes of the tensor before the first column."""
        return self.of.begin + self.first * self.itemsize


@dataclass(frozen=True, eq=False)
class Operand(Tensor):
    """Activations, bf16, that a matrix product reads: from row to row an odd number of cache lines.

    With a power of two, say, the rows of a tile would all fall into the same set of the L1 cache.

    It begins a cache line after the beginning of a page. Rows in the order of tiles and weights are read side by side,
    tile by tile; with the same address within a page a product takes 1.08 times as long (a virtual Xeon with AMX).
    """

    rows_per_token: int = 1

    @property
    def begin(self) -> int:
        """Bytes of its memory before its first element."""
        return CACHE_LINE

    @property
    def ld(self) -> int:
        """Elements from row to row."""
        columns = padded(self.cols)
        return columns if columns // PAD % 2 == 1 else columns + PAD


@dataclass(frozen=True, eq=False, kw_only=True)
class OperandColumns(Columns, Operand):
    """Columns of an operand, whole cache lines from its beginning."""


@dataclass(frozen=True, eq=False)
class Quantized(Tensor):
    """Activations, int8, that a matrix product with int8 weights or groups of codes reads.

    A row, or each of its heads, is followed by its scale, or by those of its groups, with their sums. From row
    to row, and from head to head, an odd number of cache lines, and one line before all, as for `Operand`.
    """

    group: int = 0
    heads: int = 1  # of a row; `cols` are of each of them

    @property
    def begin(self) -> int:
        """Bytes of its memory before its first element."""
        return CACHE_LINE

    @property
    def ld(self) -> int:
        """Elements from row to row."""
        return _odd_lines(self.heads * self.head_ld)

    @property
    def head_ld(self) -> int:
        """Elements from head to head."""
        unit = self.group or CACHE_LINE
        groups = -(-self.cols // unit)
        return _odd_lines(groups * unit + (GROUP_SCALE_BYTES * groups if self.group else 4))


class Residual(Buffer):
    """The residual stream, fp32, equal on all ranks."""


class Partial(Buffer):
    """This rank's part, fp32, of a sum over the ranks that is still to be taken."""


class Logits(Buffer):
    """Logits of this rank's part of the vocabulary, fp32, of the rows that want a sample."""


def _odd_lines(nbytes: int) -> int:
    lines = -(-nbytes // CACHE_LINE)
    return CACHE_LINE * (lines + 1 - lines % 2)
