"""gpt-oss: experts in every layer, attention sinks, every second layer sliding.

All experts of a layer lie in one tensor, gate and up in turn. Every linear part has a bias.
"""

from __future__ import annotations

from dataclasses import replace

from numaserve.workers.models import decoder
from numaserve.workers.models.config.experts import read_experts
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    MAX_INTERMEDIATE,
    read_common,
    read_head_dim,
    read_layer_count,
    read_layer_kinds,
    read_sliding_window,
)
from numaserve.workers.models.config.rope import read_rope
from numaserve.workers.models.family import Family, MoeNames
from numaserve.workers.models.spec import LayerKind, ModelConfig, MoeConfig

_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_DEFAULTS = {
    "head_dim": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "rope_parameters": _ROPE,
}
_SIGMOID_GAIN = 1.702  # the kernels' too


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    fields = fields.with_defaults(**_DEFAULTS)
    fields.refuse("swiglu_alpha", _SIGMOID_GAIN)
    layers = read_layer_count(fields)
    alternating: tuple[LayerKind, ...] = tuple("full" if layer % 2 else "sliding" for layer in range(layers))
    experts, top_k = read_experts(fields, "num_local_experts")
    bias = fields.flag("attention_bias", True)
    return read_common(
        fields,
        "gpt_oss",
        architecture,
        sliding_window=read_sliding_window(fields, default=128),
        layer_kinds=read_layer_kinds(fields, alternating),
        rope=read_rope(fields, read_head_dim(fields), default_theta=150000.0),
        qkv_bias=bias,
        attention_output_bias=bias,
        attention_sinks=True,
        moe=MoeConfig(
            experts,
            top_k,
            fields.integer("intermediate_size", 1, MAX_INTERMEDIATE),
            activation="swiglu_oai",
            swiglu_limit=fields.number("swiglu_limit", 1e-3, 1e6, 7.0),
            router_bias=True,
            expert_bias=True,
        ),
        moe_layers=tuple(range(layers)),
    )


def _configure_gguf(fields: Fields, architecture: str) -> ModelConfig:
    return replace(configure(fields, architecture), family=GGUF_FAMILY.name)


FAMILY = Family(
    name="gpt_oss",
    architectures=("GptOssForCausalLM",),
    gguf_architecture=None,
    configure=configure,
    forward=decoder.forward,
    moe_names=MoeNames(
        router="mlp.router", gate="gate_up_proj", up="gate_up_proj", down="down_proj", fused=True, interleaved=True
    ),
)
# llama.cpp's converter takes gate and up apart.
GGUF_FAMILY = replace(
    FAMILY,
    name="gpt_oss_gguf",
    gguf_architecture="gpt-oss",
    configure=_configure_gguf,
    moe_names=MoeNames(router=FAMILY.moe_names.router),
)
