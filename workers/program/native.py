"""Runs a list of operations natively: each becomes a node of `kernels.Program`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

import numpy.typing as npt
from msgspec import structs
from numaserve.kernels import Counter, Program, Team
from numaserve.shm_comm import Ring
from numaserve.workers.program.buffers import Buffer, Quantized
from numaserve.workers.program.caches import CacheIndex, CacheKind
from numaserve.workers.program.cost import BF16
from numaserve.workers.program.handles import Handle
from numaserve.workers.program.layout import Layout, Place, layout
from numaserve.workers.program.ops.adapters import Shrink
from numaserve.workers.program.ops.attention import Attention, RopeStore
from numaserve.workers.program.ops.base import Joining, Operation
from numaserve.workers.program.ops.exchange import DividedNorm, Reduce, Sample
from numaserve.workers.program.ops.experts import CombineExperts, MultiplyExperts, RouteExperts
from numaserve.workers.program.ops.images import (
    Clamp,
    EmbedTaps,
    MeanRows,
    MergeRows,
    PlaceRows,
    RotaryRows,
)
from numaserve.workers.program.ops.latent import DividedAttention, GatherColumns, GatherQueries, LatentStore
from numaserve.workers.program.ops.products import HeadLinear, Linear
from numaserve.workers.program.ops.recurrent import (
    CausalConv,
    GatedDelta,
    GatedHeadNorm,
    KeyDecays,
    KeyDelta,
    SigmoidGate,
    StateSpace,
)
from numaserve.workers.program.ops.rows import (
    Embed,
    Gather,
    GroupNorm,
    LayerNorm,
    Multiply,
    Pool,
    Pooled,
    Quantize,
    QuantizeHeads,
    RmsNorm,
    TokenRows,
    has_node,
)
from numaserve.workers.program.ops.streams import AddNorm, LayerInputs, Narrow
from numaserve.workers.program.outside import OutsideRows, outside_rows
from numaserve.workers.program.setup import ProgramSetup


def make_program(
    setup: ProgramSetup,
    operations: Sequence[Operation],
    team: Team,
    ring: Ring | None = None,
    weights: Callable[[Handle], object] | None = None,
    *,
    lender: Program | None = None,
    counter: Counter | None = None,
) -> Program:
    """A Program that runs `operations` on `team`; `ring` is None with one rank. With a `lender` it reads the KV cache
    of that Program, and has none of its own. With a `counter` it counts the work of each step, and computes nothing.

    `weights` gives the native object of a handle; operations may have native objects in place of handles too.

    Raises `ValueError` for what no node can do, or a collective that does not fit the ring.
    """
    places = layout(operations)
    for buffer in places.places:
        if buffer.collective and ring is not None and buffer.nbytes > ring.slot_bytes:
            raise ValueError(
                f"a message of {buffer.nbytes} bytes to other ranks does not fit in a ring slot of "
                f"{ring.slot_bytes} bytes"
            )
    program = Program(team, ring, native_settings(setup) | {"arena_bytes": places.arena_bytes}, lender, counter)
    nodes = _Nodes(places, weights)
    for operation in operations:
        if has_node(operation):
            kind, more = KINDS[type(operation)]
            program.add(kind, nodes.fields(operation) | more(nodes, operation))
    program.set_collectives(places.collectives)
    return program


def native_rows(program: Program, operations: Sequence[Operation]) -> OutsideRows:
    """The rows of a Program of `operations` that it is given and keeps, in its memory."""
    places, arena = layout(operations), program.arena

    def rows(buffer: Buffer, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        begin, ld, _ = places.place(buffer)
        whole = arena[begin : begin + buffer.rows * ld * buffer.itemsize]
        found: npt.NDArray[Any] = whole.view(dtype).reshape(buffer.rows, ld)[:, : buffer.cols]
        return found

    return outside_rows(operations, rows)


def native_settings(setup: ProgramSetup) -> dict[str, Any]:
    """The settings of a native Program, but for the size of its arena."""
    shape, parallel = setup.shape, setup.context_parallel
    return structs.asdict(setup.limits) | {
        "vocabulary": shape.vocab_bounds[-1],
        "extra_tokens": shape.extra_tokens,
        "caches": [_cache_kind(*each) for each in zip(shape.caches, setup.page_tables, strict=True)],
        "states": [(each.slot_bytes, each.page_bytes, each.draft_bytes, each.layers) for each in shape.states],
        "context_parallel": (parallel.head_bounds, parallel.from_tokens, parallel.max_rows) if parallel else None,
        "kv_dtype": setup.settings.kv_cache_dtype,
    }


def _cache_kind(kind: CacheKind, table: int) -> tuple[int | bool, ...]:
    heads = kind.heads
    counts = heads.query, heads.kv, heads.lower, heads.higher
    return *counts, heads.dim, heads.value_dim, heads.is_latent, *kind.window, kind.layers, table


@dataclass(frozen=True)
class _Nodes:
    """Makes the fields of nodes: places for buffers, native weights for handles."""

    layout: Layout
    weights: Callable[[Handle], object] | None

    def fields(self, operation: Operation) -> dict[str, Any]:
        """The fields of an operation, by name, as its node takes them."""
        own = [each.name for each in fields(operation) if each.name not in _NOT_NATIVE]
        return {name: self.native(getattr(operation, name)) for name in own}

    def native(self, value: Any) -> Any:
        """The value of a field."""
        if isinstance(value, Buffer):
            return self.layout.place(value)
        if isinstance(value, CacheIndex):
            return value
        if isinstance(value, tuple):
            return [self.native(each) for each in value]
        if self.weights is not None and isinstance(value, Handle):
            return self.weights(value)
        return value

    def quantized(self, out: Quantized) -> tuple[Place, int, int]:
        """A `QuantizedPlace`: the place of int8 and its scales, columns, group."""
        return self.layout.place(out), out.cols, out.group


def _none(nodes: _Nodes, op: Operation) -> dict[str, Any]:
    return {}


def _joining(nodes: _Nodes, op: Joining) -> dict[str, Any]:
    return {"joins_before": op.before is not None}


def _norm(nodes: _Nodes, op: RmsNorm) -> dict[str, Any]:
    beside = op.out.whole is not op.out
    quantized = nodes.quantized(op.quantized) if op.quantized else None
    return {"cols": op.x.cols, "quantized": quantized, "beside": beside}


def _rope_store(nodes: _Nodes, op: RopeStore) -> dict[str, Any]:
    return {"pairs": 0 if op.rope_rows is None else op.rope_rows.cols // 2}


def _quantize(nodes: _Nodes, op: Quantize) -> dict[str, Any]:
    return {"out": nodes.quantized(op.out)}


def _quantize_heads(nodes: _Nodes, op: QuantizeHeads) -> dict[str, Any]:
    heads, stride = op.out.heads, op.x.cols // max(op.out.heads, 1)
    return {"out": nodes.quantized(op.out), "x_stride": stride, "out_stride": op.out.head_ld, "num_heads": heads}


def _head_linear(nodes: _Nodes, op: HeadLinear) -> dict[str, Any]:
    return {"x_stride": op.x_stride, "out_stride": op.out_stride}


def _reduce(nodes: _Nodes, op: Reduce) -> dict[str, Any]:
    return {"sum": nodes.native(op.sum or op.residual), "cols": op.residual.cols} | _joining(nodes, op)


def _route(nodes: _Nodes, op: RouteExperts) -> dict[str, Any]:
    held = {"first_expert": op.held.start, "local_experts": len(op.held)}
    group = op.x.group if isinstance(op.x, Quantized) else 0
    return asdict(op.routing) | held | {"item_bytes": op.x.itemsize, "cols": op.x.cols, "group": group}


def _experts(nodes: _Nodes, op: MultiplyExperts) -> dict[str, Any]:
    shared = {"shared_x": op.shared_x or op.x, "shared_out": op.shared_out or op.out}
    return {name: nodes.native(buffer) for name, buffer in shared.items()} | {"item_bytes": op.x.itemsize}


def _delta_heads(nodes: _Nodes, op: GatedDelta | StateSpace | KeyDelta) -> dict[str, Any]:
    return {"heads": astuple(op.heads)}


def _head_norm(nodes: _Nodes, op: GatedHeadNorm) -> dict[str, Any]:
    return {"silu": op.by == "silu"}


def _sigmoid_gate(nodes: _Nodes, op: SigmoidGate) -> dict[str, Any]:
    return {"cols": op.x.cols}


def _layer_norm(nodes: _Nodes, op: LayerNorm) -> dict[str, Any]:
    return {"rounded": op.out.itemsize == BF16}


def _pool(nodes: _Nodes, op: Pool) -> dict[str, Any]:
    return {"cols": op.cols}


def _pooled(nodes: _Nodes, op: Pooled) -> dict[str, Any]:
    return {"cols": op.x.cols}


def _multiply(nodes: _Nodes, op: Multiply) -> dict[str, Any]:
    return {"cols": op.out.cols, "rounded": op.out.itemsize == BF16}


def _place_rows(nodes: _Nodes, op: PlaceRows) -> dict[str, Any]:
    return {"rows": op.pool.rows, "cols": op.pool.cols}


def _of_columns(nodes: _Nodes, op: MeanRows) -> dict[str, Any]:
    return {"cols": op.x.cols}


def _clamp(nodes: _Nodes, op: Clamp) -> dict[str, Any]:
    return {"cols": op.x.cols, "rounded": op.rounded}


def _merge_rows(nodes: _Nodes, op: MergeRows) -> dict[str, Any]:
    return {"cols": op.x.cols, "item_bytes": op.x.itemsize}


# The kind of each operation's node, and the fields that the node takes besides or in another form.
KINDS: Mapping[type[Operation], tuple[str, Callable[[_Nodes, Any], dict[str, Any]]]] = {
    Embed: ("embed", _none),
    RmsNorm: ("rms_norm", _norm),
    Quantize: ("quantize", _quantize),
    QuantizeHeads: ("quantize_heads", _quantize_heads),
    GroupNorm: ("group_norm", _none),
    LayerNorm: ("layer_norm", _layer_norm),
    Multiply: ("multiply", _multiply),
    Shrink: ("lora_shrink", _none),
    Linear: ("linear", _joining),
    HeadLinear: ("head_linear", _head_linear),
    Reduce: ("reduce", _reduce),
    RopeStore: ("rope_store", _rope_store),
    Attention: ("attention", _joining),
    LatentStore: ("latent_store", _none),
    GatherColumns: ("gather_columns", _none),
    GatherQueries: ("gather_queries", _none),
    DividedAttention: ("divided_attention", _none),
    RouteExperts: ("moe_route", _route),
    MultiplyExperts: ("moe_experts", _experts),
    CombineExperts: ("moe_combine", _none),
    CausalConv: ("causal_conv", _none),
    GatedDelta: ("gated_delta", _delta_heads),
    StateSpace: ("state_space", _delta_heads),
    KeyDecays: ("key_decays", _none),
    KeyDelta: ("key_delta", _delta_heads),
    GatedHeadNorm: ("gated_head_norm", _head_norm),
    SigmoidGate: ("sigmoid_gate", _sigmoid_gate),
    PlaceRows: ("place_rows", _place_rows),
    RotaryRows: ("rotary_rows", _none),
    EmbedTaps: ("embed_taps", _none),
    MergeRows: ("merge_rows", _merge_rows),
    MeanRows: ("mean_rows", _of_columns),
    Clamp: ("clamp", _clamp),
    Narrow: ("narrow", _none),
    AddNorm: ("add_norm", _none),
    LayerInputs: ("layer_inputs", _none),
    Gather: ("gather", _none),
    DividedNorm: ("divided_norm", _none),
    Sample: ("sample", _none),
    Pool: ("pool", _pool),
    Pooled: ("pooled", _pooled),
    TokenRows: ("token_rows", _pooled),
}
_NOT_NATIVE = frozenset({"routing", "held", "before", "by"})  # fields that no node takes
