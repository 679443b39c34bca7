"""The function that runs each operation."""

from collections.abc import Callable, Mapping
from typing import Any

from numaserve.workers.program.ops.adapters import Shrink
from numaserve.workers.program.ops.attention import Attention, RopeStore
from numaserve.workers.program.ops.base import Operation
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
    Given,
    GroupNorm,
    Keep,
    LayerNorm,
    Multiply,
    Pool,
    Pooled,
    Quantize,
    QuantizeHeads,
    RmsNorm,
    TokenRows,
)
from numaserve.workers.program.ops.streams import AddNorm, LayerInputs, Narrow
from numaserve.workers.program.reference.operations import (
    attention,
    exchange,
    experts,
    images,
    latent,
    products,
    recurrent,
    rows,
    streams,
)
from numaserve.workers.program.reference.run import Run

OPERATIONS: Mapping[type[Operation], Callable[[Run, Any], None]] = {
    Embed: rows.embed,
    Given: rows.given,
    Keep: rows.keep,
    RmsNorm: rows.rms_norm,
    GroupNorm: rows.group_norm,
    LayerNorm: rows.layer_norm,
    Quantize: rows.quantize,
    QuantizeHeads: rows.quantize_heads,
    Multiply: rows.multiply,
    Gather: rows.gather,
    Pool: rows.pool,
    Pooled: rows.pooled,
    TokenRows: rows.token_rows,
    Shrink: products.shrink,
    Linear: products.linear,
    HeadLinear: products.head_linear,
    RopeStore: attention.rope_store,
    Attention: attention.attention,
    LatentStore: latent.latent_store,
    GatherColumns: latent.gather_columns,
    GatherQueries: latent.gather_queries,
    DividedAttention: latent.divided_attention,
    RouteExperts: experts.route_experts,
    MultiplyExperts: experts.multiply_experts,
    CombineExperts: experts.combine_experts,
    CausalConv: recurrent.causal_conv,
    GatedDelta: recurrent.gated_delta,
    StateSpace: recurrent.state_space,
    KeyDecays: recurrent.key_decays,
    KeyDelta: recurrent.key_delta,
    GatedHeadNorm: recurrent.gated_head_norm,
    SigmoidGate: recurrent.sigmoid_gate,
    PlaceRows: images.place_rows,
    RotaryRows: images.rotary_rows,
    EmbedTaps: images.embed_taps,
    MergeRows: images.merge_rows,
    MeanRows: images.mean_rows,
    Clamp: images.clamp,
    Narrow: streams.narrow,
    AddNorm: streams.add_norm,
    LayerInputs: streams.layer_inputs,
    Reduce: exchange.reduce,
    DividedNorm: exchange.divided_norm,
    Sample: exchange.sample,
}
