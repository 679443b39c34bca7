"""Mixtral: Mistral whose layers are all mixtures of experts."""

from __future__ import annotations

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
from numaserve.workers.models.spec import ModelConfig, MoeConfig

_DEFAULTS = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "num_local_experts": 8, "num_experts_per_tok": 2}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    fields = fields.with_defaults(**_DEFAULTS)
    layers = read_layer_count(fields)
    window = read_sliding_window(fields)
    experts, top_k = read_experts(fields, "num_local_experts")
    moe = MoeConfig(experts, top_k, fields.integer("intermediate_size", 1, MAX_INTERMEDIATE))
    return read_common(
        fields,
        "mixtral",
        architecture,
        sliding_window=window,
        layer_kinds=read_layer_kinds(fields, ("full" if window is None else "sliding",) * layers),
        rope=read_rope(fields, read_head_dim(fields), default_theta=1e6),
        moe=moe,
        moe_layers=tuple(range(layers)),
    )


FAMILY = Family(
    name="mixtral",
    architectures=("MixtralForCausalLM",),
    gguf_architecture=None,  # its GGUF files say "llama"
    configure=configure,
    forward=decoder.forward,
    moe_names=MoeNames(
        router="block_sparse_moe.gate", experts="block_sparse_moe.experts", gate="w1", up="w3", down="w2"
    ),
)
