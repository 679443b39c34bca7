"""Qwen3-MoE: Qwen3 with experts."""

from __future__ import annotations

from numaserve.workers.models import decoder
from numaserve.workers.models.config.experts import read_qwen_moe
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import read_common, read_layer_count, read_sliding_window
from numaserve.workers.models.family import Family
from numaserve.workers.models.spec import ModelConfig

_DEFAULTS = {"num_key_value_heads": 4, "num_experts_per_tok": 8, "moe_intermediate_size": 768}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    fields = fields.with_defaults(**_DEFAULTS)
    moe, moe_layers = read_qwen_moe(fields)
    # On every layer: `max_window_layers` counts in Qwen3 only.
    window = read_sliding_window(fields, default=4096) if fields.flag("use_sliding_window", False) else None
    bias = fields.flag("attention_bias", False)
    return read_common(
        fields,
        "qwen3_moe",
        architecture,
        qk_norm=True,
        qkv_bias=bias,
        attention_output_bias=bias,
        sliding_window=window,
        layer_kinds=("full" if window is None else "sliding",) * read_layer_count(fields),
        moe=moe,
        moe_layers=moe_layers,
    )


FAMILY = Family(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    gguf_architecture="qwen3moe",
    configure=configure,
    forward=decoder.forward,
)
