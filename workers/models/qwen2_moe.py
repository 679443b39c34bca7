"""Qwen1.5-MoE and Qwen2-MoE: Qwen2 with experts, and a gated shared expert for every token."""

from functools import partial

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.models.config.experts import read_qwen_experts
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_experts import expert_values
from numaserve.workers.models.config.huggingface import (
    MAX_INTERMEDIATE,
    read_common,
    read_layer_kinds,
    read_sliding_window,
    windows_of,
)
from numaserve.workers.models.family import Family, GgufForm
from numaserve.workers.models.spec import ModelConfig

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
    common = read_common(fields)
    shared = fields.integer("shared_expert_intermediate_size", 1, MAX_INTERMEDIATE)
    experts_of = read_qwen_experts(common, shared=shared)
    biases = "qkv" if fields.flag("qkv_bias", True) else "none"
    windows = _read_windows(fields, common.layers)

    def block(layer: int) -> Block:
        attention = common.attention(layer, biases=biases, mask=Mask(windows[layer]))
        return common.block(layer, attention, experts_of(layer))

    return common.model("qwen2_moe", architecture, block)


def _read_windows(fields: Fields, layers: int) -> list[int | None]:
    """Return the windows. Every second of the first layers slides, as in transformers; Qwen2's layers slide from that
    layer on."""
    window = read_sliding_window(fields, default=4096) if fields.flag("use_sliding_window", False) else None
    last = fields.integer("max_window_layers", 0, 2**16, 28)
    slides = [window is not None and layer % 2 == 0 and layer < last for layer in range(layers)]
    return windows_of(read_layer_kinds(fields, slides), window)


FAMILY = Family(
    name="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    configure=configure,
    gguf=GgufForm("qwen2moe", values=partial(expert_values, renormalized=False)),
)
