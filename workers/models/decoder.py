"""The decoder that the families share: attention and a gated MLP, or a mixture of them, around a residual stream, RMS
norms before each (and, where the weights have them, after each)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numaserve.workers.models.spec import ModelConfig, MoeConfig
from numaserve.workers.program.experts import ExpertMatrices, Router
from numaserve.workers.program.ops.experts import Routing
from numaserve.workers.weights.weights import DenseMlp, MlaWeights, MoeWeights

if TYPE_CHECKING:
    from numaserve.workers.program.buffers import Operand, Partial
    from numaserve.workers.program.builder import ProgramBuilder
    from numaserve.workers.weights.weights import Weights


def forward(b: ProgramBuilder, config: ModelConfig, weights: Weights) -> None:
    """Append the whole forward pass, from token ids to samples, to the program."""
    eps = config.rms_norm_eps
    residual = b.embed(weights.embedding, first_row=weights.shard.vocab.start, scale=config.embedding_scale)
    for index, layer in enumerate(weights.layers):
        x = b.rms_norm(residual, layer.input_norm, eps)
        attended = b.linear_partial(_attention(b, config, weights, index, x), layer.o)
        b.add_all_reduce(residual, attended, eps=eps, post_norm=layer.post_attention_norm, bias=layer.o_bias)
        x = b.rms_norm(residual, layer.mlp_norm, eps)
        b.add_all_reduce(residual, _mlp(b, config, x, layer.mlp), eps=eps, post_norm=layer.post_mlp_norm)
    logits = b.lm_head(b.rms_norm(residual, weights.final_norm, eps), weights.lm_head)
    b.sample(logits, softcap=config.final_softcap)


def _attention(b: ProgramBuilder, config: ModelConfig, weights: Weights, index: int, x: Operand) -> Operand:
    layer, rope, scale = weights.layers[index], weights.ropes[index], config.query_scale
    if config.mla is not None and isinstance(layer.qkv, MlaWeights):
        w, eps = layer.qkv, config.mla.norm_eps
        kv, q = b.split(b.latents(x, w.qkv_a), config.mla.cache_dim)
        if w.q_b is not None and w.q_a_norm is not None:
            q = b.linear(b.rms_norm(q, w.q_a_norm, eps), w.q_b)
        return b.latent_attention(q, kv, w.w_uk, w.w_uv, layer=index, rope=rope, norm=w.kv_a_norm, eps=eps, scale=scale)
    assert not isinstance(layer.qkv, MlaWeights)  # noqa: S101  the configuration has no latents
    qkv = b.linear(x, layer.qkv, layer.qkv_bias)
    eps = config.rms_norm_eps
    q = b.qkv_rope(qkv, layer=index, rope=rope, q_norm=layer.q_norm, k_norm=layer.k_norm, eps=eps)
    return b.attention(
        q,
        layer=index,
        scale=scale,
        window=config.window(index),
        softcap=config.attention_softcap,
        sinks=layer.sinks,
    )


def _mlp(b: ProgramBuilder, config: ModelConfig, x: Operand, mlp: DenseMlp | MoeWeights) -> Partial:
    if isinstance(mlp, DenseMlp):
        return b.gated_mlp(x, mlp.gate_up, mlp.down, config.activation)
    assert config.moe is not None  # noqa: S101  it has weights
    return experts(b, x, config.moe, mlp)


def experts(b: ProgramBuilder, x: Operand, moe: MoeConfig, weights: MoeWeights) -> Partial:
    """A mixture of experts: this rank's part of it."""
    routing = Routing(
        num_experts=moe.num_experts,
        top_k=moe.top_k,
        scoring=moe.scoring,
        renormalize=moe.renormalize,
        scale=moe.scale,
        num_groups=moe.num_groups,
        top_groups=moe.top_groups,
        group_score=moe.group_score,
        shared_gate=moe.shared_gate,
    )
    gate_up, down = (weights.shared.gate_up, weights.shared.down) if weights.shared else (None, None)
    return b.experts(
        x,
        routing,
        Router(weights.router, weights.router_bias, weights.correction_bias),
        held=weights.experts,
        gate_up=ExpertMatrices(weights.gate_up, gate_up, weights.gate_up_bias),
        down=ExpertMatrices(weights.down, down, weights.down_bias),
        activation=moe.activation,
        limit=moe.swiglu_limit,
    )
