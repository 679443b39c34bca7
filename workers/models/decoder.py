"""The decoder that the families share: attention and a gated MLP, or a mixture of them, around a residual stream, RMS
norms before each (and, where the weights have them, after each)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.weights.weights import DenseMlp, MlaWeights, MoeWeights

if TYPE_CHECKING:
    from numaserve.workers.program.buffers import Operand, Partial
    from numaserve.workers.program.builder import ProgramBuilder
    from numaserve.workers.weights.weights import Weights


def forward(b: ProgramBuilder, config: ModelConfig, weights: Weights) -> None:
    """Append the whole forward pass, from token ids to samples, to the program."""
    eps = config.rms_norm_eps
    residual = b.embed(weights.embedding, first_row=weights.shard.vocab.start, scale=config.embedding_scale)
    x = b.rms_norm(residual, weights.layers[0].input_norm, eps)
    # A norm is fused into the all-reduce before it: each layer ends with the norm that the next one begins with.
    next_norms = [layer.input_norm for layer in weights.layers[1:]] + [weights.final_norm]
    for index, (layer, next_norm) in enumerate(zip(weights.layers, next_norms, strict=True)):
        x = b.add_all_reduce(
            residual,
            b.linear_partial(_attention(b, config, weights, index, x), layer.o),
            norm=layer.mlp_norm,
            eps=eps,
            post_norm=layer.post_attention_norm,
            bias=layer.o_bias,
        )
        x = b.add_all_reduce(
            residual,
            _mlp(b, config, x, layer.mlp),
            norm=next_norm,
            eps=eps,
            post_norm=layer.post_mlp_norm,
        )
    b.sample(b.lm_head(x, weights.lm_head, softcap=config.final_softcap))


def _attention(b: ProgramBuilder, config: ModelConfig, weights: Weights, index: int, x: Operand) -> Operand:
    layer, rope, scale = weights.layers[index], weights.ropes[index], config.query_scale
    if config.mla is not None and isinstance(layer.qkv, MlaWeights):
        w, eps = layer.qkv, config.mla.norm_eps
        kv, q = b.split(b.latents(x, w.qkv_a), config.mla.cache_dim)
        if w.q_b is not None and w.q_a_norm is not None:
            q = b.linear(b.rms_norm(q, w.q_a_norm, eps), w.q_b)
        return b.mla_attention(q, kv, w.w_uk, w.w_uv, layer=index, rope=rope, norm=w.kv_a_norm, eps=eps, scale=scale)
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
    return b.moe(x, config.moe, mlp)
