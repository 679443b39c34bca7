"""Operations of a mixture of experts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from numaserve.workers.interface.protocol import OperationTerms
from numaserve.workers.program.buffers import Buffer, Operand, Quantized, Tensor
from numaserve.workers.program.cost import FP32, Amount, OperationCost, StepWork, expected_share, of_rows
from numaserve.workers.program.ops.base import Accumulating, Matrix, Operation, Reads, Vector, Writes, product_of
from numaserve.workers.program.setup import ProgramSetup

ExpertActivation = Literal["none", "silu", "gelu_tanh", "swiglu_oai", "relu2"]


@dataclass(frozen=True, kw_only=True)
class Routing:
    """The rule by which a token goes to experts, and by which these are weighted."""

    num_experts: int
    top_k: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = True  # the weights of the chosen experts are divided by their sum
    scale: float = 1.0  # on the weights, after that
    num_groups: int = 1  # of experts that follow each other
    top_groups: int = 1  # experts are chosen from these best groups only
    group_score: Literal["max", "top2"] = "max"  # of a group: its best score, or the sum of its two best
    weighs_input: bool = False  # the weights multiply the rows that experts get, not the experts' results
    shared_gate: bool = False  # the shared expert's result is multiplied by the sigmoid of one more logit


@dataclass(frozen=True, kw_only=True)
class RouteExperts(Operation):
    """Chooses the experts of each token from logits [tokens, experts], and copies x's rows to `sorted`, those of an
    expert below each other; only of the experts `held`, which this rank has.

    `routes` [tokens, 2 * top_k + 1]: rows of sorted, weights, the shared expert's weight. `counts`: where each expert's
    rows begin. `correction` [experts] is added to the scores for choosing, not for weighing; `factors` [experts]
    multiply the weights last.
    """

    logits: Reads[Tensor]
    x: Reads[Operand | Quantized]
    sorted: Writes[Operand | Quantized]
    routes: Writes[Tensor]
    counts: Writes[Tensor]
    routing: Routing
    correction: Vector | None
    factors: Vector | None
    held: range

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """A token's row is copied for each of its experts."""
        return [of_rows("moe_route", 2 * self.routing.top_k * self.x.ld * self.x.itemsize)]


@dataclass(frozen=True, kw_only=True)
class MultiplyExperts(Operation):
    """out = the rows of each expert in x times its matrix, as `Linear` does; shared_out = shared_x times `shared`.

    `bias` is that of all experts, each padded to whole panels; `limit` that of swiglu_oai. There
    may be no experts, or no shared one. `reads_alone`: the operation before makes x in bf16, for this one alone, and x
    has space for whole tiles of each expert. Some instruction sets then write it in the order of tiles.
    """

    name: str
    x: Reads[Operand | Quantized]
    out: Writes[Tensor]
    counts: Reads[Tensor]
    shared_x: Reads[Operand | Quantized | None] = None
    shared_out: Writes[Tensor | None] = None
    weights: tuple[Matrix, ...]
    shared: Matrix | None
    bias: Vector | None = None
    activation: ExpertActivation = "none"
    limit: float = 0.0
    widened: bool
    shared_widened: bool
    routing: Routing
    reads_alone: bool = False

    def __post_init__(self) -> None:
        """Raise `ValueError` when the experts differ in format: all of them read the same activations."""
        if len({(matrix.format, matrix.group) for matrix in self.weights}) > 1:
            raise ValueError(f"{self.name}: all experts of a layer must have the same format")

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """The experts that tokens go to are read, each once, and the shared one."""
        first = self.weights[0] if self.weights else self.shared
        if first is None:
            return []
        num_experts, top_k, shared = self.routing.num_experts, self.routing.top_k, self.shared
        features = sum(each.n * each.k for each in self.weights) * top_k / num_experts
        terms = OperationTerms(
            self.name,
            weight_bytes=0 if shared is None else shared.nbytes,
            row_flops=2 * (features + (0 if shared is None else shared.n * shared.k)),
            expert_bytes=sum(each.nbytes for each in self.weights),
            num_experts=num_experts,
            top_k=top_k,
        )

        def amount(step: StepWork) -> Amount:
            share = expected_share(num_experts, top_k, step.tokens)
            rows = step.tokens * top_k / num_experts  # of each expert
            nbytes = terms.expert_bytes * share + terms.weight_bytes
            return Amount(nbytes, terms.row_flops * step.tokens, rows / share)

        computes = "bf16" if (self.widened if self.weights else self.shared_widened) else first.format
        return [OperationCost(self.name, "experts", amount, product_of(first), computes, terms)]


@dataclass(frozen=True, kw_only=True)
class CombineExperts(Accumulating):
    """out [tokens, hidden] = the weighted sum of each token's rows of y, in the order of the experts, and of its row of
    `shared`."""

    y: Reads[Tensor]
    routes: Reads[Tensor]
    out: Writes[Buffer]
    shared: Reads[Tensor | None] = None
    top_k: int

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """A row for each of a token's experts is read."""
        columns = self.y.ld
        return [of_rows("moe_combine", columns * FP32 * (self.top_k + (1 if self.shared else 0)))]
