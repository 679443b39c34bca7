"""A mixture of experts (Shazeer et al., 2017): each token goes to some of many MLPs, and to a shared one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from numaserve.workers.layers.axes import Axis, ExpertAxis, RouterRows
from numaserve.workers.layers.layer import FeedForward
from numaserve.workers.layers.mlp import Mlp, MlpNames, PlainMlp, gate_up_parts, up_part
from numaserve.workers.layers.parameters import (
    EACH,
    MatrixParameter,
    Order,
    Parameter,
    Part,
    Source,
    Split,
    Stack,
    VectorParameter,
    vector,
    whole,
)
from numaserve.workers.program.ops.experts import ExpertActivation, Routing
from numaserve.workers.program.recording.experts import ExpertMatrices, Router

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Partial
    from numaserve.workers.program.recording.builder import ProgramBuilder


_EACH = MlpNames("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class ExpertNames:
    """The modules of a mixture of experts; expert 3 has its matrices below `experts`.3, or with `stacked` the
    checkpoint has those of all experts in one tensor (`Source`)."""

    router: str = "mlp.gate"
    correction_bias: str = "mlp.gate.e_score_correction_bias"  # the whole name
    experts: str = "mlp.experts"
    shared: str = "mlp.shared_expert"
    shared_gate: str = "mlp.shared_expert_gate"
    each: MlpNames = _EACH  # within a routed expert
    shared_each: MlpNames = _EACH  # within the shared one
    factors: str | None = None  # the whole name of the experts' factors; None: they have none
    stacked: Stack | None = None


_GGUF_EXPERTS = MlpNames("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
_GGUF_FUSED = MlpNames("ffn_gate_up_exps", "ffn_gate_up_exps", "ffn_down_exps")
_GGUF_SHARED = MlpNames("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")


@dataclass(frozen=True)
class Experts(FeedForward):
    """Routed experts of `intermediate` columns each, and all shared ones together as one MLP of `shared` columns.

    With the activation relu2 they have no gates.

    `at` is what its modules' names begin with. The router's precision is bf16, whatever the checkpoint is quantized to.
    """

    at: str
    hidden: int
    routing: Routing
    intermediate: int
    shared: int = 0
    activation: ExpertActivation = "silu"
    limit: float = 0.0  # of swiglu_oai: gate is at most this, up from -this to this
    correction_bias: bool = False  # added to the scores for choosing, not for weighing
    router_bias: bool = False
    expert_bias: bool = False
    names: ExpertNames = field(default_factory=ExpertNames)

    @cached_property
    def experts(self) -> Axis:
        """The routed experts."""
        return ExpertAxis("experts", self.routing.num_experts, "experts")

    @cached_property
    def columns(self) -> Axis:
        """The columns of each of them."""
        return ExpertAxis("expert_intermediate", self.intermediate, "columns")

    @cached_property
    def shared_mlp(self) -> Mlp | PlainMlp | None:
        """The shared experts."""
        if not self.shared:
            return None
        names = self.names.shared_each.below(self.names.shared)
        made = Mlp if self.has_gates else PlainMlp
        return made(self.at, self.hidden, self.shared, names=names, gguf=_GGUF_SHARED, axis_name="shared_intermediate")

    @property
    def has_gates(self) -> bool:
        """Whether the activation multiplies what it gates."""
        return self.activation != "relu2"

    @cached_property
    def router(self) -> MatrixParameter:
        """A row for each expert, and one for the gate of the shared ones."""
        parts = [Part(self._router, Order(self.routing.num_experts), self.router_rows)]
        if self.routing.shared_gate:
            gate = Source(self.at + self.names.shared_gate, (1, self.hidden), f"{self.at}ffn_gate_inp_shexp", False)
            parts.append(whole(gate))
        return MatrixParameter(tuple(parts), rule="bf16", is_router=True)

    @cached_property
    def router_vector(self) -> VectorParameter | None:
        """The router's bias, [experts]."""
        if not self.router_bias:
            return None
        return VectorParameter((Part(self._router.bias, Order(self.routing.num_experts), self.router_rows),))

    @cached_property
    def router_rows(self) -> Axis:
        """The rows of the router. With a gate of the shared experts next to them they are not divided."""
        count = self.routing.num_experts
        return RouterRows("router", count, 0 if self.routing.shared_gate else 2 * self.hidden)

    @cached_property
    def correction(self) -> VectorParameter | None:
        """The bias of the scores by which experts are chosen, [experts]."""
        if not self.correction_bias:
            return None
        shape = (self.routing.num_experts,)
        return vector(Source(self.at + self.names.correction_bias, shape, f"{self.at}exp_probs_b.bias"))

    @cached_property
    def factors(self) -> VectorParameter | None:
        """The factors of the experts' weights, [experts]."""
        if self.names.factors is None:
            return None
        shape = (self.routing.num_experts,)
        return vector(Source(self.at + self.names.factors, shape, f"{self.at}ffn_down_exps.scale"))

    @cached_property
    def gate_up(self) -> MatrixParameter:
        """A matrix for each expert, as in `Mlp`."""
        return MatrixParameter(self._gate_up, layout="panels" if self.has_gates else "below", each=self.experts)

    @cached_property
    def down(self) -> MatrixParameter:
        """A matrix for each expert, as in `Mlp`."""
        return MatrixParameter((whole(self._down),), Split(self.columns), each=self.experts)

    @cached_property
    def gate_up_bias(self) -> VectorParameter | None:
        """The biases of gate and up, in the order of the rows of `gate_up`."""
        if not self.expert_bias:
            return None
        parts = tuple(replace(part, source=part.source.bias) for part in self._gate_up)
        return VectorParameter(parts, "panels", each=self.experts)

    @cached_property
    def down_bias(self) -> VectorParameter | None:
        """The biases of down. Ranks' parts of an expert are summed: the one that has its first column adds the bias."""
        if not self.expert_bias:
            return None
        return VectorParameter((whole(self._down.bias),), each=self.experts, only_first_of=self.columns)

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.router, self.router_vector, self.correction, self.factors)
        yield from (self.gate_up, self.down, self.gate_up_bias, self.down_bias)
        if self.shared_mlp is not None:
            yield from self.shared_mlp.parameters()

    def in_gguf(self, pairs: bool, tensors: Collection[str]) -> Self:
        """llama.cpp's converters take gate and up apart, for most models."""
        if not self.names.stacked:
            return self
        is_fused = any(name.endswith(f".{_GGUF_FUSED.up}.weight") for name in tensors)
        return replace(self, names=replace(self.names, stacked=None)) if is_fused else self.apart()

    def apart(self) -> Self:
        """The same experts with a tensor for each matrix."""
        return replace(self, names=replace(self.names, each=_EACH, shared_each=_EACH, stacked=None))

    @property
    def stacks(self) -> set[str]:
        """The tensors that have the matrices of all experts."""
        sources = (*self.gate_up.sources, *self.down.sources) if self.names.stacked else ()
        return {source.name.replace(f".{EACH}", "") for source in sources}

    def scratch_columns(self, part: RankPart) -> int:
        """A token's rows for each of its experts, all of which may be on this rank, and their scores."""
        copies = min(self.routing.top_k, len(part.along(self.experts)))
        routed = copies * (2 * self.hidden + 3 * len(part.along(self.columns)))
        shared = 0 if self.shared_mlp is None else self.shared_mlp.scratch_columns(part)
        return routed + shared + self.routing.num_experts

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand, router_x: Operand | None = None) -> Partial:
        """See `FeedForward`. `router_x` is the input of the router, where that is not `x`."""
        shared = self.shared_mlp
        gate_up, down = (None, None) if shared is None else (part.matrix(_inputs(shared)), part.matrix(shared.down))
        rows = part.partition.ranges(self.router_rows)
        return b.experts(
            x,
            self.routing,
            Router(
                part.matrix(self.router),
                part.vector(self.router_vector),
                correction=part.vector(self.correction),
                factors=part.vector(self.factors),
                bounds=part.partition.bounds(self.router_rows) if rows[0] != rows[-1] else (),
                x=router_x,
            ),
            held=part.along(self.experts),
            gate_up=ExpertMatrices(part.matrices(self.gate_up), gate_up, part.vector(self.gate_up_bias)),
            down=ExpertMatrices(part.matrices(self.down), down, part.vector(self.down_bias)),
            activation=self.activation,
            limit=self.limit,
        )

    @cached_property
    def _router(self) -> Source:
        count = self.routing.num_experts
        return Source(self.at + self.names.router, (count, self.hidden), f"{self.at}ffn_gate_inp", False)

    @cached_property
    def _gate_up(self) -> tuple[Part, ...]:
        names = self.names.each.below(f"{self.names.experts}.{EACH}")
        if not self.has_gates:
            return (self._of_each(up_part(self.at, names, _GGUF_EXPERTS, self.columns, self.hidden)),)
        gguf = _GGUF_FUSED if names.gate == names.up else _GGUF_EXPERTS
        gate, up = gate_up_parts(self.at, names, gguf, self.columns, self.hidden)
        return self._of_each(gate), self._of_each(up)

    @cached_property
    def _down(self) -> Source:
        module = f"{self.at}{self.names.experts}.{EACH}.{self.names.each.down}"
        shape = (self.hidden, self.intermediate)
        return Source(module, shape, self.at + _GGUF_EXPERTS.down, stacked=self.names.stacked)

    def _of_each(self, part: Part) -> Part:
        return replace(part, source=replace(part.source, stacked=self.names.stacked))


def _inputs(shared: Mlp | PlainMlp) -> MatrixParameter:
    return shared.gate_up if isinstance(shared, Mlp) else shared.up
