"""Mistral: Llama with a sliding window on every layer, or on none where `sliding_window` is null."""

from __future__ import annotations

from numaserve.workers.layers.decoder import Block
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import read_common, read_windows
from numaserve.workers.models.family import Family
from numaserve.workers.models.spec import ModelConfig


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json. A missing `sliding_window` is 4096, as in transformers; null is none."""
    common = read_common(fields)
    windows = read_windows(fields, default=4096)

    def block(layer: int) -> Block:
        return common.block(layer, common.attention(layer, window=windows[layer]))

    return common.model("mistral", architecture, block)


FAMILY = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    configure=configure,  # its GGUF files say "llama"
)
