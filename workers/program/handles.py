"""Handles of weights: their sizes and formats. Only interpreters know the weights themselves."""

from dataclasses import dataclass
from typing import Literal

from numaserve.workers.interface.settings import ActivationDtype, WeightFormat
from numaserve.workers.program.rope import RopeConfig

Offsets = Literal["none", "zeros", "minima"]
KeptFormat = (
    WeightFormat | Literal["mxfp4", "iq4", "iq3", "iq2", "nvfp4"]
)  # nothing is quantized to these while loading
FOUR_BITS: frozenset[KeptFormat] = frozenset({"int4", "mxfp4", "iq4", "iq3", "iq2", "nvfp4"})
# They take activations in int8 or bf16.
INTEGER_GROUPS: frozenset[KeptFormat] = FOUR_BITS - {"nvfp4"} | {"int8_group"}

_SCALE_BYTES: dict[KeptFormat, int] = {"fp8": 4, "mxfp4": 1}

TILE_ROWS = 16
TILE_COLUMNS = 32
INT8_TILE_COLUMNS = 64
MATRIX_PAD = 32  # rows and columns of packed matrices are padded to this
BF16_BYTES = 2
_NVFP4_GROUP = 16


@dataclass(frozen=True)
class MatrixFormat:
    """The format of a packed matrix; `group` is 0 for formats without groups. `activations`: what codes of
    `INTEGER_GROUPS` are multiplied by, which shows in no byte; other formats leave no choice."""

    format: KeptFormat = "bf16"
    group: int = 0
    offsets: Offsets = "none"
    activations: ActivationDtype = "bf16"


BF16 = MatrixFormat()


def product_name(format: str, group: int, activations: ActivationDtype) -> str:
    """Return the name of products with a format of weights: "int4/32", or "int4/32 x int8" by int8 activations."""
    held = f"{format}/{group}" if group else format
    return f"{held} x int8" if activations == "int8" else held


def round_up(value: int, unit: int) -> int:
    """The smallest multiple of `unit` that is at least `value`."""
    return -(-value // unit) * unit


def matrix_bytes(n: int, k: int, made: MatrixFormat = BF16) -> int:
    """Memory of a packed matrix of n output and k input features, padded to whole tiles and groups.

    int8 has a scale and a correction, 4 bytes each, for each output feature; the formats with groups have a scale, and
    maybe an offset, of 2 bytes for each output feature and group, and 4 bytes more for each output feature; fp8 has a
    scale of 4 bytes for each output feature and group, mxfp4 of one byte. nvfp4 has a scale of one byte for each output
    feature and 16 columns, and 4 bytes for each output feature.
    """
    n, group = round_up(n, MATRIX_PAD), made.group
    if made.format == "bf16":
        return n * round_up(k, MATRIX_PAD) * BF16_BYTES
    if made.format == "int8":
        return n * (round_up(k, INT8_TILE_COLUMNS) + 8)
    groups = -(-round_up(k, MATRIX_PAD) // group)
    codes = group // 2 if made.format in FOUR_BITS else group
    if made.format == "nvfp4":
        return n * (groups * (codes + group // _NVFP4_GROUP) + 4)
    if made.format in _SCALE_BYTES:
        return n * groups * (codes + _SCALE_BYTES[made.format])
    return n * (groups * (codes + (2 if made.offsets == "none" else 4)) + 4)


@dataclass(frozen=True, eq=False)
class Adapters:
    """Memory for low-rank adapters of a matrix [n, k] (LoRA; Hu et al., 2021): `places` of them, of at most `rank`.

    A *part* is some rows of the matrix that have an A [rank, k] of their own, such as those of queries. A *block* is a
    panel of 16 rows of the packed matrix and a part that has rows in it; it has [rank, 16] values of a B.
    """

    places: int
    rank: int
    parts: int
    k: int
    panels: tuple[tuple[int, ...], ...]  # the parts with rows in each panel

    @property
    def depth(self) -> int:
        """Columns of an A, in whole tiles."""
        return round_up(self.k, TILE_COLUMNS)

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return sum(map(len, self.panels))

    @property
    def nbytes(self) -> int:
        """Its memory, in bytes."""
        return self.places * self.rank * (self.parts * self.depth + self.blocks * TILE_ROWS) * BF16_BYTES


@dataclass(frozen=True, eq=False)
class Matrix:
    """A packed weight of one rank.

    Shape: [n, k], out features first.
    """

    n: int
    k: int
    made: MatrixFormat = BF16
    adapters: Adapters | None = None  # that update its products

    @property
    def format(self) -> str:
        """The name of its format."""
        return self.made.format

    @property
    def group(self) -> int:
        """The columns that have a scale in common; 0 for formats without groups."""
        return self.made.group

    @property
    def offsets(self) -> str:
        """The kind of its offsets: none, zeros or minima."""
        return self.made.offsets

    @property
    def activations(self) -> ActivationDtype:
        """The data type that codes in groups of integers are multiplied by."""
        return self.made.activations

    @property
    def nbytes(self) -> int:
        """Its memory, in bytes."""
        return matrix_bytes(self.n, self.k, self.made)


@dataclass(frozen=True, eq=False)
class Vector:
    """A norm's weight or a bias, fp32.

    Shape: [size].
    """

    size: int


@dataclass(frozen=True)
class Rope:
    """The cosines and sines of a rotary embedding: layers that rotate alike share them."""

    config: RopeConfig


Handle = Matrix | Vector | Rope | Adapters
