"""Operations around the residual stream: norms that are added to it, and the inputs that layers have besides it."""

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.workers.program.buffers import Residual, Tensor
from numaserve.workers.program.cost import BF16, FP32, OperationCost, of_rows
from numaserve.workers.program.ops.base import Matrix, Operation, Reads, Updates, Vector, Writes
from numaserve.workers.program.setup import ProgramSetup


@dataclass(frozen=True, kw_only=True)
class Narrow(Operation):
    """out = the rows of x that want logits, and the same of `beside`. The operations after it work on these rows alone,
    and the rows of logits are their tokens."""

    x: Reads[Residual]
    out: Writes[Residual]
    beside: Reads[Tensor | None] = None
    beside_out: Writes[Tensor | None] = None

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Rows are copied."""
        columns = self.x.ld + (0 if self.beside is None else self.beside.ld)
        return [of_rows("narrow", 2 * columns * FP32, logits=True)]


@dataclass(frozen=True, kw_only=True)
class AddNorm(Operation):
    """residual = (residual + x / sqrt(mean(x²) + eps) * weight) * scale; `x` is whole on every rank, and `scale` is one
    number, or None for 1."""

    x: Reads[Residual]
    residual: Updates[Residual]
    weight: Vector
    eps: float
    scale: Vector | None = None

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Both are read, and the stream is written."""
        columns = self.x.cols
        return [of_rows("add_norm", 3 * columns * FP32)]


@dataclass(frozen=True, kw_only=True)
class LayerInputs(Operation):
    """The inputs of the layers whose columns this rank has, besides the residual stream: out, fp32 [tokens, layers *
    width].

    out = for each layer, the norm of its columns of `x`, times `weight` [width], plus its columns of the token's row of
    `table`, times `scale`.
    """

    x: Reads[Tensor]
    out: Writes[Tensor]
    weight: Vector
    eps: float
    table: Matrix
    scale: float

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """fp32 and a row of the table are read, fp32 is written."""
        return [of_rows("layer_inputs", self.out.cols * (2 * FP32 + BF16))]
