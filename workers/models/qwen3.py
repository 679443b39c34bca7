"""Qwen3: Llama with an RMS norm on each query and key head, and heads that need not add up to the hidden size."""

from __future__ import annotations

from numaserve.workers.models import decoder
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import read_common
from numaserve.workers.models.family import Family
from numaserve.workers.models.qwen2 import read_late_window
from numaserve.workers.models.spec import ModelConfig


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json. A missing `head_dim` is 128, as in transformers."""
    window, kinds = read_late_window(fields)
    bias = fields.flag("attention_bias", False)
    return read_common(
        fields.with_defaults(head_dim=128),
        "qwen3",
        architecture,
        qk_norm=True,
        qkv_bias=bias,
        attention_output_bias=bias,
        sliding_window=window,
        layer_kinds=kinds,
    )


FAMILY = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    gguf_architecture="qwen3",
    configure=configure,
    forward=decoder.forward,
)
