"""Qwen1.5-MoE and Qwen2-MoE: Qwen2 with experts, and one more that every token goes to, through a gate."""

from __future__ import annotations

from dataclasses import replace

from numaserve.workers.models import decoder
from numaserve.workers.models.config.experts import read_qwen_moe
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    MAX_INTERMEDIATE,
    read_common,
    read_layer_count,
    read_layer_kinds,
    read_sliding_window,
)
from numaserve.workers.models.family import Family
from numaserve.workers.models.spec import LayerKind, ModelConfig

_DEFAULTS = {
    "num_key_value_heads": 16,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    fields = fields.with_defaults(**_DEFAULTS)
    moe, moe_layers = read_qwen_moe(fields)
    shared = fields.integer("shared_expert_intermediate_size", 1, MAX_INTERMEDIATE)
    window = read_sliding_window(fields, default=4096) if fields.flag("use_sliding_window", False) else None
    last = fields.integer("max_window_layers", 0, 2**16, 28)
    # Every second of the first layers slides, as in transformers; Qwen2's slide from that layer on.
    kinds: tuple[LayerKind, ...] = tuple(
        "sliding" if window is not None and layer % 2 == 0 and layer < last else "full"
        for layer in range(read_layer_count(fields))
    )
    return read_common(
        fields,
        "qwen2_moe",
        architecture,
        qkv_bias=fields.flag("qkv_bias", True),
        sliding_window=window,
        layer_kinds=read_layer_kinds(fields, kinds),
        moe=replace(moe, shared_intermediate_size=shared, shared_gate=True),
        moe_layers=moe_layers,
    )


FAMILY = Family(
    name="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    gguf_architecture="qwen2moe",
    configure=configure,
    forward=decoder.forward,
)
