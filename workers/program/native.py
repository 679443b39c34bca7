"""Runs a list of operations natively: each becomes a node of `kernels.Program`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numaserve.kernels import Program, Team
from numaserve.shm_comm import Ring
from numaserve.workers.program.buffers import Buffer, Quantized
from numaserve.workers.program.layout import Layout, Place, layout
from numaserve.workers.program.ops.attention import Attention, RopeStore
from numaserve.workers.program.ops.base import Operation
from numaserve.workers.program.ops.exchange import Reduce, Sample
from numaserve.workers.program.ops.experts import CombineExperts, MultiplyExperts, RouteExperts
from numaserve.workers.program.ops.latent import DividedAttention, GatherColumns, GatherQueries, LatentStore
from numaserve.workers.program.ops.products import HeadLinear, Linear
from numaserve.workers.program.ops.rows import Embed, Gather, Quantize, QuantizeHeads, RmsNorm
from numaserve.workers.program.setup import ProgramSetup

QuantizedPlace = tuple[Place, int, int]  # columns, group


def make_program(
    setup: ProgramSetup,
    operations: Sequence[Operation],
    team: Team,
    ring: Ring | None = None,
    weights: Mapping[Any, Any] | None = None,
) -> Program:
    """A Program that runs `operations` on `team`; `ring` is None with one rank. `weights`: what stands for a matrix, a
    vector or a rope in the operations, where that is not the native object itself.

    Raises `ValueError` for what no node can do, or a collective that does not fit the ring.
    """
    places = layout(operations)
    for buffer in places.places:
        if buffer.collective and ring is not None and buffer.nbytes > ring.slot_bytes:
            raise ValueError(f"a collective of {buffer.nbytes} bytes does not fit a ring slot of {ring.slot_bytes}")
    program = _empty(setup, team, ring, places.arena_bytes)
    nodes = _Nodes(program, places, weights or {})
    for operation in operations:
        _ADD[type(operation)](nodes, operation)
    program.set_collectives(places.collectives)
    return program


def _empty(setup: ProgramSetup, team: Team, ring: Ring | None, arena_bytes: int) -> Program:
    shape, limits, parallel = setup.shape, setup.limits, setup.context_parallel
    return Program(
        team=team,
        ring=ring,
        max_tokens=limits.max_step_tokens,
        max_logit_rows=limits.max_logit_rows,
        max_slots=limits.max_slots,
        pages_per_slot=limits.pages_per_slot,
        num_pages=limits.num_pages,
        vocabulary=shape.vocab_bounds[-1],
        q_heads=shape.q_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        value_dim=shape.value_dim,
        context_parallel=(parallel.head_bounds, parallel.from_tokens, parallel.max_rows) if parallel else None,
        layers=shape.num_layers,
        kv_dtype=setup.settings.kv_cache_dtype,
        arena_bytes=arena_bytes,
    )


@dataclass(frozen=True)
class _Nodes:
    """What nodes are made with: the Program that takes them, places of buffers, native weights of what stands for
    them."""

    program: Program
    layout: Layout
    weights: Mapping[Any, Any] = field(repr=False)

    def at(self, buffer: Buffer) -> Place:
        return self.layout.place(buffer)

    def quantized(self, buffer: Quantized) -> QuantizedPlace:
        return self.at(buffer), buffer.cols, buffer.group

    def of(self, weight: Any) -> Any:
        return self.weights.get(weight, weight)


def _embed(n: _Nodes, op: Embed) -> None:
    n.program.embed(n.of(op.table), op.first_row, op.scale, n.at(op.out))


def _rms_norm(n: _Nodes, op: RmsNorm) -> None:
    also = n.quantized(op.quantized) if op.quantized else None
    n.program.rms_norm(n.at(op.x), n.of(op.weight), n.at(op.out), op.eps, also)


def _quantize(n: _Nodes, op: Quantize) -> None:
    n.program.quantize(n.at(op.x), n.quantized(op.out), op.rows_per_token, op.logits)


def _quantize_heads(n: _Nodes, op: QuantizeHeads) -> None:
    heads = op.out.heads
    n.program.quantize_heads(n.at(op.x), op.x.cols // max(heads, 1), n.quantized(op.out), op.out.head_ld, heads)


def _linear(n: _Nodes, op: Linear) -> None:
    n.program.linear(
        op.name,
        n.at(op.x),
        n.of(op.weight),
        n.of(op.bias),
        op.activation or "none",
        op.widened,
        op.accumulate,
        op.logits,
        n.at(op.out),
    )


def _head_linear(n: _Nodes, op: HeadLinear) -> None:
    weight, out = n.of(op.weight), n.at(op.out)
    n.program.head_linear(op.name, n.at(op.x), op.x_stride, weight, op.heads, op.widened, out, op.out_stride)


def _reduce(n: _Nodes, op: Reduce) -> None:
    n.program.reduce(
        n.at(op.partial),
        n.at(op.residual),
        n.at(op.scratch or op.residual),
        op.residual.cols,
        op.assign,
        n.of(op.bias),
        n.of(op.post_norm),
        op.eps,
    )


def _rope_store(n: _Nodes, op: RopeStore) -> None:
    rope, q_norm, k_norm = n.of(op.rope), n.of(op.q_norm), n.of(op.k_norm)
    n.program.rope_store(n.at(op.qkv), n.at(op.q), op.layer, rope, q_norm, k_norm, op.eps)


def _attention(n: _Nodes, op: Attention) -> None:
    places = (n.at(op.q), n.at(op.out), n.at(op.partial))
    n.program.attention(*places, op.layer, op.scale, op.window, op.softcap, n.of(op.sinks))


def _latent_store(n: _Nodes, op: LatentStore) -> None:
    places = (n.at(op.q), n.at(op.kv), n.at(op.nope), n.at(op.query))
    n.program.mla_store(*places, op.layer, op.nope_dim, n.of(op.rope), n.of(op.norm), op.eps)


def _gather_columns(n: _Nodes, op: GatherColumns) -> None:
    n.program.gather_columns(n.at(op.part), n.at(op.out), op.bounds)


def _gather_queries(n: _Nodes, op: GatherQueries) -> None:
    n.program.gather_queries(n.at(op.query), n.at(op.message), n.at(op.gathered))


def _divided_attention(n: _Nodes, op: DividedAttention) -> None:
    places = (n.at(op.gathered), n.at(op.message), n.at(op.out), n.at(op.partial))
    n.program.divided_attention(*places, op.layer, op.scale)


def _route_experts(n: _Nodes, op: RouteExperts) -> None:
    routing = op.routing
    n.program.moe_route(
        logits=n.at(op.logits),
        x=n.at(op.x),
        sorted=n.at(op.sorted),
        routes=n.at(op.routes),
        counts=n.at(op.counts),
        item_bytes=op.x.itemsize,
        first_expert=op.held.start,
        local_experts=len(op.held),
        shared_gate=routing.shared_gate,
        num_experts=routing.num_experts,
        top_k=routing.top_k,
        scoring=routing.scoring,
        renormalize=routing.renormalize,
        scale=routing.scale,
        correction=n.of(op.correction),
        num_groups=routing.num_groups,
        top_groups=routing.top_groups,
        group_score=routing.group_score,
    )


def _multiply_experts(n: _Nodes, op: MultiplyExperts) -> None:
    n.program.moe_experts(
        name=op.name,
        x=n.at(op.x),
        weights=[n.of(weight) for weight in op.weights],
        bias=n.of(op.bias),
        out=n.at(op.out),
        counts=n.at(op.counts),
        shared=n.of(op.shared),
        shared_x=n.at(op.shared_x or op.x),
        shared_out=n.at(op.shared_out or op.out),
        activation=op.activation or "none",
        limit=op.limit,
        item_bytes=op.x.itemsize,
        widened=op.widened,
        shared_widened=op.shared_widened,
    )


def _combine_experts(n: _Nodes, op: CombineExperts) -> None:
    shared = n.at(op.shared) if op.shared else None
    n.program.moe_combine(n.at(op.y), n.at(op.routes), op.top_k, shared, op.accumulate, n.at(op.out))


def _gather(n: _Nodes, op: Gather) -> None:
    n.program.gather(n.at(op.x), n.at(op.out))


def _sample(n: _Nodes, op: Sample) -> None:
    n.program.sample(n.at(op.logits), n.at(op.tokens), op.vocab_bounds, op.softcap)


_ADD: dict[type[Operation], Callable[[_Nodes, Any], None]] = {
    Embed: _embed,
    RmsNorm: _rms_norm,
    Quantize: _quantize,
    QuantizeHeads: _quantize_heads,
    Linear: _linear,
    HeadLinear: _head_linear,
    Reduce: _reduce,
    RopeStore: _rope_store,
    Attention: _attention,
    LatentStore: _latent_store,
    GatherColumns: _gather_columns,
    GatherQueries: _gather_queries,
    DividedAttention: _divided_attention,
    RouteExperts: _route_experts,
    MultiplyExperts: _multiply_experts,
    CombineExperts: _combine_experts,
    Gather: _gather,
    Sample: _sample,
}
