"""Products with packed matrices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from numaserve.workers.interface.protocol import OperationTerms
from numaserve.workers.program.buffers import Buffer, Operand, Quantized, Tensor
from numaserve.workers.program.cost import BF16, Amount, Kind, OperationCost, StepWork
from numaserve.workers.program.ops.base import (
    Accumulating,
    Adapters,
    Joining,
    Matrix,
    Operation,
    Reads,
    Vector,
    Writes,
    product_of,
)
from numaserve.workers.program.setup import ProgramSetup

GateActivation = Literal["silu", "gelu_tanh"]  # that all operations with gates have
Activation = Literal["none", "silu", "gelu_tanh", "relu2", "gelu", "plain_gelu_tanh", "geglu", "tanh", "relu"]


@dataclass(frozen=True, kw_only=True)
class Linear(Accumulating, Joining):
    """out [tokens, n] = x · weightᵀ + bias, fp32. `logits`: rows of logits instead of tokens.

    With an activation out is bf16 [tokens, n / 2] = activation(gate) * up, of panels of 16 rows, gate and up in turn;
    with relu2 it is bf16 [tokens, n] = max(x, 0)², with gelu the GELU of each column, with plain_gelu_tanh its tanh
    approximation.
    With `adapters`, rows of sequences that have one get its update before the activation: shrunk · Bᵀ, where `shrunk`
    is the result of a `Shrink` with the same adapters.
    `widened`: codes in groups become bf16 before they are multiplied. `reads_alone`: the operation before makes
    x, in bf16 or int8, and no other operation reads it.
    """

    name: str
    x: Reads[Operand | Quantized]
    out: Writes[Buffer]
    weight: Matrix
    bias: Vector | None = None
    activation: Activation = "none"
    widened: bool
    logits: bool = False
    reads_alone: bool = False
    adapters: Adapters | None = None
    shrunk: Reads[Tensor | None] = None

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """All weights are read once, whatever the number of rows."""
        return [weight_cost(self.name, "gemm", self.weight, widened=self.widened, logits=self.logits)]


@dataclass(frozen=True, kw_only=True)
class HeadLinear(Operation):
    """Each head's columns of x [tokens, heads * k] through its rows of `weight` [heads * n, k], to the first n of its
    columns of out, bf16."""

    name: str
    x: Reads[Operand | Quantized]
    out: Writes[Buffer]
    weight: Matrix
    num_heads: int
    widened: bool

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """All weights are read once."""
        return [weight_cost(self.name, "latent", self.weight, widened=self.widened)]

    @property
    def x_stride(self) -> int:
        """Elements of x from head to head."""
        return self.x.head_ld if isinstance(self.x, Quantized) else self.x.cols // max(self.num_heads, 1)

    @property
    def out_stride(self) -> int:
        """Elements of out from head to head."""
        return self.out.cols // max(self.num_heads, 1)


def weight_cost(name: str, kind: Kind, weight: Matrix, *, widened: bool, logits: bool = False) -> OperationCost:
    """The cost of a product that reads all of `weight` where there is a row. Its terms include the whole update by
    adapters, with the first half, which a `Shrink` computes."""

    adapted = 0 if weight.adapters is None else weight.adapters.parts * weight.k + weight.n  # values of rank 1
    terms = OperationTerms(
        name,
        logits,
        weight_bytes=weight.nbytes,
        row_flops=2 * weight.n * weight.k,
        adapter_bytes=BF16 * adapted,
        adapter_flops=2 * adapted,
    )

    def amount(step: StepWork) -> Amount:
        rows = step.rows(logits)
        return Amount(terms.weight_bytes if rows else 0, terms.row_flops * rows, rows)

    return OperationCost(name, kind, amount, product_of(weight), "bf16" if widened else weight.format, terms)
