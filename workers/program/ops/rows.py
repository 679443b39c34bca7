"""Operations that take each row for itself: embedding, norm, quantization, products, the rows that want logits or
are pooled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from numaserve.workers.program.buffers import Buffer, Operand, OperandColumns, Quantized, Residual, Tensor
from numaserve.workers.program.cost import (
    BF16,
    FP32,
    INT8,
    Amount,
    OperationCost,
    RowBytes,
    of_rows,
)
from numaserve.workers.program.ops.base import Accumulating, Matrix, Operation, Reads, Vector, Writes
from numaserve.workers.program.ops.products import Activation
from numaserve.workers.program.setup import ProgramSetup
from numaserve.workers.program.slots import RowIndex

Pooling = Literal["last", "cls", "mean", "max"]


@dataclass(frozen=True, kw_only=True)
class Embed(Accumulating):
    """out [tokens, hidden] = the row of `table` at the `index` of each token, times `scale`; zeros for tokens whose row
    it does not have. It holds rows `first_row` ... of the embedding."""

    table: Matrix
    first_row: int
    scale: float
    index: RowIndex = "token"
    out: Writes[Buffer]

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """A row of the table is read, and one written."""
        return [of_rows("embed", self.table.k * (BF16 + FP32))]


@dataclass(frozen=True, kw_only=True)
class Given(Operation):
    """out, fp32 [tokens, columns] or `Persistent`, has been filled in from outside before the step, under a name."""

    name: str
    out: Writes[Residual | Tensor]

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Nothing is done."""
        return []


@dataclass(frozen=True, kw_only=True)
class Keep(Operation):
    """x, bf16 or fp32 [tokens, columns], is read from outside after the step, under a name."""

    name: str
    x: Reads[Residual | Tensor]

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Nothing is done."""
        return []


def has_node(operation: Operation) -> bool:
    """Return whether an operation is a node of a Program. Others only name memory that is read or written from
    outside."""
    return not isinstance(operation, Given | Keep)


@dataclass(frozen=True, kw_only=True)
class RmsNorm(Operation):
    """out, bf16 [tokens, columns] = x / sqrt(mean(x²) + eps) * weight; `quantized` is the same in int8.

    Without a weight, x is only rounded.
    """

    x: Reads[Residual | Tensor]
    out: Writes[Operand | OperandColumns]
    quantized: Writes[Quantized | None] = None
    weight: Vector | None
    eps: float

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """fp32 is read, bf16 written, and maybe int8."""
        columns = self.x.cols
        row_bytes = columns * (FP32 + BF16 + (INT8 if self.quantized else 0))
        return [of_rows("rms_norm", row_bytes)]


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Operation):
    """out [tokens, columns] = (x - mean) / sqrt(variance + eps) * weight + bias, in fp32 or bf16 as `out` is. It may
    take the place of `x`."""

    x: Reads[Residual | Tensor]
    out: Writes[Operand | Residual]
    weight: Vector
    bias: Vector | None
    eps: float

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """fp32 is read, fp32 or bf16 written."""
        columns = self.x.cols
        row_bytes = columns * (FP32 + self.out.itemsize)
        return [of_rows("layer_norm", row_bytes)]


@dataclass(frozen=True, kw_only=True)
class GroupNorm(Operation):
    """out, bf16 [tokens, columns] = the norm of each group of columns of `x`, fp32, by the weight of the group. Groups
    are of the same size, and fill whole cache lines."""

    x: Reads[Tensor]
    out: Writes[Operand]
    weights: tuple[Vector, ...]
    eps: float

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """fp32 is read, bf16 written."""
        columns = self.x.cols
        return [of_rows("group_norm", columns * (FP32 + BF16))]


@dataclass(frozen=True, kw_only=True)
class Quantize(Operation):
    """out = x in int8 with scales, `rows_per_token` rows of each token. `logits`: of each row of logits instead."""

    x: Reads[Operand]
    out: Writes[Quantized]
    rows_per_token: int
    logits: bool

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """bf16 is read, int8 written."""
        columns = self.rows_per_token * self.out.cols
        return [of_rows("quantize", columns * (BF16 + INT8), logits=self.logits)]


@dataclass(frozen=True, kw_only=True)
class QuantizeHeads(Operation):
    """out = x in int8, each head with scales of its own."""

    x: Reads[Operand]
    out: Writes[Quantized]

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """bf16 is read, int8 written."""
        heads = self.out.heads
        return [of_rows("quantize", heads * self.out.cols * (BF16 + INT8))]


@dataclass(frozen=True, kw_only=True)
class Multiply(Operation):
    """out = x * activation(y), fp32 of the shape of `out`; rounded where `out` is bf16. Without x it is the activation
    alone."""

    x: Reads[Tensor | None]
    y: Reads[Residual | Tensor]
    out: Writes[Tensor]
    activation: Activation

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """fp32 is read, and the product written."""
        read = FP32 if self.x is None else 2 * FP32
        return [of_rows("multiply", self.out.cols * (read + self.out.itemsize))]


@dataclass(frozen=True, kw_only=True)
class Gather(Operation):
    """out = the rows of x that want logits."""

    x: Reads[Operand]
    out: Writes[Operand]

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Rows are copied."""
        return [of_rows("gather", self.x.ld * 2 * BF16, logits=True)]


@dataclass(frozen=True, kw_only=True)
class Pool(Operation):
    """out, fp32 [sequences that are pooled, columns] = the last or first row of x that each of them has, or the mean or
    the maximum of its rows; of their RMS norms if there is a weight. The operations after it work on these rows."""

    x: Reads[Residual | Tensor]
    out: Writes[Tensor]
    pooling: Pooling
    weight: Vector | None
    eps: float

    @property
    def cols(self) -> int:
        """The columns of a vector."""
        return self.x.cols

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """fp32 is read and written."""
        row_bytes, reads_all = self.cols * FP32, self.pooling in ("mean", "max")
        moves = RowBytes(token=row_bytes, pooled=row_bytes) if reads_all else RowBytes(pooled=2 * row_bytes)
        return [OperationCost("pool", "rows", lambda step: Amount(rows=step.pooled), moves=moves)]


@dataclass(frozen=True, kw_only=True)
class TokenRows(Operation):
    """out, bf16 [tokens, columns] = x. The operations after it work on all tokens, and run only in a step with a pooled
    sequence that asks for vectors of its tokens."""

    x: Reads[Residual]
    out: Writes[Operand]

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Nothing is done in most steps."""
        return []


@dataclass(frozen=True, kw_only=True)
class Pooled(Operation):
    """x, fp32 [sequences that are pooled, columns], has their vectors, which are read from outside after the step."""

    x: Reads[Tensor]

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Nothing is done."""
        return []
