"""Llama 2, 3 and 3.x, and what shares their architecture (SmolLM2, TinyLlama, Yi)."""

from __future__ import annotations

from numaserve.workers.models import decoder
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import read_common
from numaserve.workers.models.family import Family
from numaserve.workers.models.spec import ModelConfig


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json. `attention_bias` puts biases on q, k, v and o."""
    bias = fields.flag("attention_bias", False)
    return read_common(fields, "llama", architecture, qkv_bias=bias, attention_output_bias=bias)


FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    gguf_architecture="llama",
    configure=configure,
    forward=decoder.forward,
)
