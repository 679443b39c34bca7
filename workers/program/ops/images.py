"""Operations of image input: rows of features in place of embeddings, and the patches of a tile that become one row."""

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.workers.program.buffers import Operand, Persistent, Residual
from numaserve.workers.program.cost import BF16, OperationCost, of_rows
from numaserve.workers.program.ops.base import Operation, Reads, Updates, Writes
from numaserve.workers.program.setup import ProgramSetup


@dataclass(frozen=True, kw_only=True)
class PlaceRows(Operation):
    """The rows of `residual`, fp32 [tokens, columns], that a step's plan names take rows of `pool`, bf16 [feature rows,
    columns]. It is not run in steps that name none."""

    residual: Updates[Residual]
    pool: Reads[Persistent]

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Nothing is done in most steps."""
        return []


@dataclass(frozen=True, kw_only=True)
class MergeRows(Operation):
    """out, bf16 [tokens / factor², columns * factor²] = the rows of each block of factor x factor patches of `x` side
    by side. Each tile is a sequence of side x side patches, and blocks and patches are in the order of rows.

    The operations after it work on the rows of blocks. It is the pixel shuffle of Idefics3 (Laurençon et al., 2024).
    """

    x: Reads[Operand]
    out: Writes[Operand]
    side: int
    factor: int

    @property
    def merged(self) -> int:
        """The number of rows that become one."""
        return self.factor * self.factor

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Rows are copied."""
        return [of_rows("merge_rows", 2 * self.x.cols * BF16)]
