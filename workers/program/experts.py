"""Mixture of experts, in the vocabulary of the Program builder.

Tokens are routed, their rows copied so that those of an expert follow each other, multiplied expert by expert, and what
the experts make of a token is weighted and summed in fp32, in the order of the experts. The shared expert is one more
part of the same two products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from numaserve.kernels import PackedMatrix, Program, Vector
from numaserve.workers.program.buffers import ACTIVATION_TILE_ROWS, Operand, Partial, Quantized, Tensor
from numaserve.workers.program.recorder import Recorder

if TYPE_CHECKING:
    from numaserve.workers.models.spec import MoeConfig
    from numaserve.workers.weights.weights import MoeWeights


@dataclass(frozen=True)
class _Routes:
    """Where a step's routing lies: for each token, and for each expert."""

    by_token: Tensor  # rows of the sorted matrices, then weights, then the shared expert's weight
    counts: Tensor


@dataclass(frozen=True)
class _Product:
    """A product with every expert that this rank holds, and with the shared one, which may be of another format: [out
    features, in features] each.

    There may be neither: a rank has no experts where there are more ranks than experts to divide.
    """

    name: str
    experts: Sequence[PackedMatrix]
    shared: PackedMatrix | None
    bias: Vector | None = None  # of all experts, each padded to whole panels
    activation: str = "none"
    limit: float = 0.0  # of swiglu_oai

    def __post_init__(self) -> None:
        # All of them read the same activations.
        if len({(matrix.format, matrix.group) for matrix in self.experts}) > 1:
            raise ValueError(f"{self.name}: the experts of a layer differ in format")


class _Source(NamedTuple):
    """What is multiplied, and whether codes are widened to it."""

    x: Tensor
    widened: bool


class MoeOperations(Recorder):
    """Records mixtures of experts."""

    def moe(self, x: Operand, routing: MoeConfig, weights: MoeWeights) -> Partial:
        """This rank's part of the sum over each token's experts, and the shared one: fp32 [tokens, hidden].

        `x` is bf16 [tokens, hidden]. Raises `ValueError` when the experts differ in format.
        """
        shared = weights.shared
        gate_up = _Product(
            "moe_gate_up",
            weights.gate_up,
            shared.gate_up if shared else None,
            weights.gate_up_bias,
            routing.activation,
            routing.swiglu_limit,
        )
        down = _Product("moe_down", weights.down, shared.down if shared else None, weights.down_bias)

        rows = self.limits.max_step_tokens
        copies = min(routing.top_k, len(weights.experts))  # of a token, if all its experts are on this rank
        # The tiles of an expert begin with its first row, not at a multiple of their own height: those of the last one
        # may end after the last row of all.
        routed = rows * copies + ACTIVATION_TILE_ROWS - 1
        token = self._source(x, *weights.gate_up[:1])
        by_expert = _Source(_rows_like(token.x, routed), token.widened)
        shared_token = self._source(x, *([shared.gate_up] if shared else []))
        routes = self._route(x, token.x, by_expert.x, routing, weights)
        hidden = Operand(routed, weights.down[0].k if weights.down else 0, 2, rows_per_token=copies)
        shared_hidden = Operand(rows, shared.down.k, 2) if shared else None
        self._multiply(gate_up, (by_expert, shared_token), (hidden, shared_hidden), routes)

        source = self._source(hidden, *weights.down[:1])
        shared_source = self._source(shared_hidden, shared.down) if shared and shared_hidden else source
        y = Tensor(rows * copies, self.shape.hidden_size, 4)
        shared_y = Tensor(rows, self.shape.hidden_size, 4) if shared else None
        self._multiply(down, (source, shared_source), (y, shared_y), routes)
        return self._combined(y, shared_y, routes, routing.top_k)

    def _source(self, x: Operand, *weight: PackedMatrix) -> _Source:
        """What a weight is multiplied by; where there is none, nothing is."""
        return _Source(*self._operand(x, weight[0])) if weight else _Source(x, False)

    def _route(self, x: Operand, token: Tensor, by_expert: Tensor, routing: MoeConfig, weights: MoeWeights) -> _Routes:
        logits = Tensor(x.rows, weights.router.n, 4)
        self._linear("moe_router", x, weights.router, logits, bias=weights.router_bias)
        held = weights.experts
        routes = _Routes(Tensor(x.rows, 2 * routing.top_k + 1, 4), Tensor(self.team.size + 1, len(held) + 1, 4))

        def emit(p: Program) -> None:
            p.moe_route(
                logits=logits.place,
                x=token.place,
                sorted=by_expert.place,
                routes=routes.by_token.place,
                counts=routes.counts.place,
                item_bytes=token.itemsize,
                first_expert=held.start,
                local_experts=len(held),
                shared_gate=routing.shared_gate,
                num_experts=routing.num_experts,
                top_k=routing.top_k,
                scoring=routing.scoring,
                renormalize=routing.renormalize,
                scale=routing.scale,
                correction=weights.correction_bias,
                num_groups=routing.num_groups,
                top_groups=routing.top_groups,
                group_score=routing.group_score,
            )

        self._record(emit, logits, token, by_expert, routes.by_token, routes.counts)
        return routes

    def _multiply(
        self,
        product: _Product,
        sources: tuple[_Source, _Source],
        results: tuple[Tensor, Tensor | None],
        routes: _Routes,
    ) -> None:
        if not product.experts and product.shared is None:
            return
        ((x, widened), (shared_x, shared_widened)), (out, shared_out) = sources, results

        def emit(p: Program) -> None:
            p.moe_experts(
                name=product.name,
                x=x.place,
                weights=list(product.experts),
                bias=product.bias,
                out=out.place,
                counts=routes.counts.place,
                shared=product.shared,
                shared_x=shared_x.place,
                shared_out=(shared_out or out).place,
                activation=product.activation,
                limit=product.limit,
                item_bytes=x.itemsize,
                widened=widened,
                shared_widened=shared_widened,
            )

        self._record(emit, x, out, routes.counts, *([shared_x, shared_out] if shared_out else []))

    def _combined(self, y: Tensor, shared_y: Tensor | None, routes: _Routes, top_k: int) -> Partial:
        out = self._partial()

        def emit(p: Program) -> None:
            accumulate = out.into is not None
            shared = shared_y.place if shared_y else None
            p.moe_combine(y.place, routes.by_token.place, top_k, shared, accumulate, (out.into or out).place)

        self._record(emit, y, routes.by_token, out, *([shared_y] if shared_y else []))
        return out


def _rows_like(token: Tensor, rows: int) -> Tensor:
    """Room for `rows` rows as those of `token`, in the same layout."""
    if isinstance(token, Quantized):
        return Quantized(rows, token.cols, token.itemsize, group=token.group)
    return Operand(rows, token.cols, token.itemsize)
