"""Mixture of experts, in the vocabulary of the Program builder.

Tokens are routed, their rows copied so that those of an expert follow each other, multiplied expert by expert, and what
the experts make of a token is weighted and summed in fp32, in the order of the experts. The shared expert is one more
part of the same two products.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from numaserve.workers.program.buffers import ACTIVATION_TILE_ROWS, Operand, Partial, Quantized, Tensor
from numaserve.workers.program.ops.base import Matrix, Vector
from numaserve.workers.program.ops.experts import (
    CombineExperts,
    ExpertActivation,
    MultiplyExperts,
    RouteExperts,
    Routing,
)
from numaserve.workers.program.recording.recorder import Recorder

# Rows whose tiles pass together, and the mean rows of an expert from which on they are written as tiles: see
# `are_tiled` in moe_nodes.cc.
ROW_GROUP, TILED_ROWS = 32, 64


@dataclass(frozen=True)
class Router:
    """The parameters that choose experts. `weight` is [experts, and one row for the shared expert's gate where it has
    one, hidden]; the vectors are [experts], `correction` is for choosing only, and `factors` multiply the weights. `x`
    is the input of the router, where the experts have another one. With `bounds`, world size + 1 boundaries, ranks have
    rows of `weight` and `bias`."""

    weight: Matrix
    bias: Vector | None = None
    bounds: tuple[int, ...] = ()
    correction: Vector | None = None
    factors: Vector | None = None
    x: Operand | None = None


@dataclass(frozen=True)
class ExpertMatrices:
    """A product with every expert that this rank holds, and with the shared one: [out features, in features] each.

    The experts are of one format, the shared one may be of another. There may be neither: a rank has no experts where
    there are more ranks than experts to divide. `bias` is that of all experts, each padded to whole panels.
    """

    experts: tuple[Matrix, ...]
    shared: Matrix | None
    bias: Vector | None = None


class _Source(NamedTuple):
    """The operand of a product, and whether the weight's codes are widened to it."""

    x: Operand | Quantized
    widened: bool


@dataclass(frozen=True)
class _Product:
    """One of the two products of a mixture: of `rows`, sorted by expert, and of the shared expert's."""

    name: str
    matrices: ExpertMatrices
    source: _Source
    shared_source: _Source
    out: Tensor
    shared_out: Tensor | None
    activation: ExpertActivation = "none"
    limit: float = 0.0
    reads_alone: bool = False


class ExpertRecorder(Recorder):
    """Records mixtures of experts."""

    def experts(
        self,
        x: Operand,
        routing: Routing,
        router: Router,
        *,
        held: range,
        gate_up: ExpertMatrices,
        down: ExpertMatrices,
        activation: ExpertActivation = "silu",
        limit: float = 0.0,
    ) -> Partial:
        """This rank's part of the sum over each token's experts, and the shared one: fp32 [tokens, hidden].

        `x` is bf16 [tokens, hidden]; this rank has the experts `held`, or columns of them. `gate_up` has panels of 16
        gate and 16 up rows in turn, or with relu2 up alone. `limit` is of swiglu_oai. Raises `ValueError` when the
        experts differ in format, or gates have not as many rows as `gated_mlp` asks for.
        """
        for gates, product in [*zip(gate_up.experts, down.experts, strict=True), (gate_up.shared, down.shared)]:
            if gates is not None and product is not None and activation != "relu2":
                self._require_gates(gates, product)
        rows = self.limits.max_step_tokens
        apart = self._shared_apart(x, gate_up.shared, down.shared, activation)
        if apart is not None:
            gate_up, down = replace(gate_up, shared=None), replace(down, shared=None)
        copies = min(routing.top_k, len(held))  # of a token, if all its experts are on this rank
        # The tiles of an expert begin with its first row, not at a multiple of their own height: those of the last one
        # may end after the last row of all.
        routed = rows * copies + ACTIVATION_TILE_ROWS - 1
        token = self._source(x, *gate_up.experts[:1])
        by_expert = _Source(_rows_like(token.x, routed), token.widened)
        shared_token = self._source(x, *_some(gate_up.shared))
        route = RouteExperts(
            logits=self._whole_product("moe_router", router.x or x, router.weight, router.bounds, router.bias),
            x=token.x,
            sorted=by_expert.x,
            routes=Tensor(x.rows, 2 * routing.top_k + 1, 4),
            counts=Tensor(self.setup.ranks.threads + 3, len(held) + 1, 4),
            routing=routing,
            correction=router.correction,
            factors=router.factors,
            held=held,
        )
        self.operations.append(route)

        # Rows between the products may lie in whole tiles of each expert. Padding would be much with few rows.
        tiled = rows * copies >= TILED_ROWS * len(held) and all(each.format == "bf16" for each in down.experts)
        padding = (ROW_GROUP - 1) * len(held) if tiled else 0
        hidden = Operand(routed + padding, down.experts[0].k if down.experts else 0, 2, rows_per_token=copies)
        shared_hidden = Operand(rows, down.shared.k, 2) if down.shared else None
        made = _Product("moe_gate_up", gate_up, by_expert, shared_token, hidden, shared_hidden, activation, limit)
        self._multiply(made, route)

        source = self._source(hidden, *down.experts[:1])
        shared_source = self._source(shared_hidden, *_some(down.shared)) if shared_hidden else source
        y = Tensor(rows * copies, self.shape.hidden_size, 4)
        shared_y = Tensor(rows, self.shape.hidden_size, 4) if down.shared else apart
        alone = tiled and bool(down.experts) and isinstance(self.operations[-1], MultiplyExperts)
        self._multiply(_Product("moe_down", down, source, shared_source, y, shared_y, reads_alone=alone), route)

        out = self._partial()
        self.operations.append(CombineExperts(y=y, routes=route.routes, top_k=routing.top_k, shared=shared_y, out=out))
        return out

    def _shared_apart(
        self, x: Operand, gate_up: Matrix | None, down: Matrix | None, activation: ExpertActivation
    ) -> Tensor | None:
        """The result of the shared expert, fp32 [tokens, hidden], as products of their own where adapters update it:
        those of a mixture take none. None where it is computed with the others. The bits are the same."""
        if gate_up is None or down is None or (gate_up.adapters is None and down.adapters is None):
            return None
        if activation == "swiglu_oai":
            raise ValueError("a shared expert with adapters cannot have the activation swiglu_oai")
        hidden, out = Operand(x.rows, down.k, 2), Tensor(x.rows, self.shape.hidden_size, 4)
        self._linear("shared_gate_up", x, gate_up, hidden, activation=activation)
        self._linear("shared_down", hidden, down, out)
        return out

    def _source(self, x: Operand, *weight: Matrix) -> _Source:
        """The operand for `weight`; `x` itself where there is none."""
        return _Source(*self._operand(x, weight[0])) if weight else _Source(x, False)

    def _multiply(self, product: _Product, route: RouteExperts) -> None:
        matrices = product.matrices
        if not matrices.experts and matrices.shared is None:
            return
        self.operations.append(
            MultiplyExperts(
                name=product.name,
                x=product.source.x,
                out=product.out,
                counts=route.counts,
                shared_x=product.shared_source.x if matrices.shared else None,
                shared_out=product.shared_out if matrices.shared else None,
                weights=matrices.experts,
                shared=matrices.shared,
                bias=matrices.bias,
                activation=product.activation,
                limit=product.limit,
                widened=product.source.widened,
                shared_widened=product.shared_source.widened,
                routing=route.routing,
                reads_alone=product.reads_alone,
            )
        )


def _some(weight: Matrix | None) -> list[Matrix]:
    return [] if weight is None else [weight]


def _rows_like(token: Operand | Quantized, rows: int) -> Operand | Quantized:
    """Room for `rows` rows as those of `token`, in the same layout."""
    if isinstance(token, Quantized):
        return Quantized(rows, token.cols, token.itemsize, group=token.group)
    return Operand(rows, token.cols, token.itemsize)
