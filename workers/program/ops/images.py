"""Operations of image input: rows of features in place of embeddings, rotary coordinates, interpolated positions, the
patches of a tile that become one row, and bounds on values of towers."""

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.workers.program.buffers import Operand, Partial, Persistent, Residual, Tensor
from numaserve.workers.program.cost import BF16, FP32, OperationCost, of_rows
from numaserve.workers.program.ops.base import Matrix, Operation, Reads, Rope, Updates, Vector, Writes
from numaserve.workers.program.setup import ProgramSetup
from numaserve.workers.program.slots import RowIndex


@dataclass(frozen=True, kw_only=True)
class PlaceRows(Operation):
    """The rows of `residual`, fp32 [tokens, columns], that a step's plan names take rows of `pool`, bf16 [feature rows,
    columns], or with `add` their sums with these. It is not run in steps that name none."""

    residual: Updates[Residual]
    pool: Reads[Persistent]
    add: bool = False

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Nothing is done in most steps."""
        return []


@dataclass(frozen=True, kw_only=True)
class RotaryRows(Operation):
    """out, fp32 [tokens, cosines of all pairs, then sines] = rows of the tables of `rope`: each pair has the values of
    the token's index `axes[pair]`."""

    out: Writes[Tensor]
    rope: Rope
    axes: tuple[RowIndex, ...]

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Values are copied."""
        return [of_rows("rotary_rows", 2 * self.out.cols * FP32)]


@dataclass(frozen=True, kw_only=True)
class EmbedTaps(Operation):
    """out [tokens, hidden] += the weighted sum of `taps` rows of `table`, which has rows `first_row` ... of the whole
    one.

    `weights` has for each token the numbers of the rows, as the bits of int32, and then their weights, fp32.
    """

    weights: Reads[Tensor]
    out: Updates[Partial | Residual]
    table: Matrix
    first_row: int
    taps: int

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Rows of the table are read, and added."""
        return [of_rows("embed_taps", self.taps * self.table.k * (BF16 + 2 * FP32))]


@dataclass(frozen=True, kw_only=True)
class Merging(Operation):
    """An operation that makes a row of each block of factor x factor patches. Each tile is a sequence of side x side
    patches, and blocks and patches are in the order of rows. With `many` a sequence has any number of such tiles, one
    after the other.

    The operations after it work on the rows of blocks.
    """

    side: int
    factor: int
    many: bool = False

    @property
    def tile(self) -> int:
        """The rows of a tile."""
        return self.side**2

    @property
    def merged(self) -> int:
        """The number of rows that become one."""
        return self.factor * self.factor


@dataclass(frozen=True, kw_only=True)
class MeanRows(Merging):
    """out, fp32 [tokens / factor², columns] = (the mean of the rows of each block of `x` - shift) * weight. With an
    `eps` above 0 rows are divided by sqrt(mean(row²) + eps) after that."""

    x: Reads[Residual]
    out: Writes[Residual]
    shift: Vector | None = None
    weight: Vector | None = None
    eps: float = 0.0

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Rows are read, and those of blocks are written."""
        return [of_rows("mean_rows", self.x.cols * FP32 * (self.merged + 1) // self.merged)]


@dataclass(frozen=True, kw_only=True)
class Clamp(Operation):
    """out = `x` with values below the first of two `bounds`, or above the second one, replaced by these; fp32 or bf16,
    [tokens, columns]."""

    x: Reads[Residual | Tensor]
    out: Writes[Residual | Tensor]
    bounds: Vector

    @property
    def rounded(self) -> bool:
        """Whether the values are bf16."""
        return isinstance(self.x, Operand)

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Rows are copied."""
        return [of_rows("clamp", 2 * self.x.cols * self.x.itemsize)]


@dataclass(frozen=True, kw_only=True)
class MergeRows(Merging):
    """out [tokens / factor², columns * factor²], bf16 or fp32 = the rows of each block of `x` side by side. With
    `extra` rows after its tile, which become nothing, a step has one sequence.

    It is the pixel shuffle of Idefics3 (Laurençon et al., 2024).
    """

    x: Reads[Residual | Tensor]
    out: Writes[Residual | Tensor]
    extra: int = 0

    @property
    def tile(self) -> int:
        """See `Merging`."""
        return self.side**2 + self.extra

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Rows are copied."""
        return [of_rows("merge_rows", 2 * self.x.cols * self.x.itemsize)]
