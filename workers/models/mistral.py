"""Mistral: Llama with a sliding window on every layer, or on none where `sliding_window` is null."""

from __future__ import annotations

from numaserve.workers.models import decoder
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    read_common,
    read_layer_count,
    read_layer_kinds,
    read_sliding_window,
)
from numaserve.workers.models.family import Family
from numaserve.workers.models.spec import ModelConfig


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json. A missing `sliding_window` is 4096, as in transformers; null is none."""
    window = read_sliding_window(fields, default=4096)
    kinds = read_layer_kinds(fields, ("full" if window is None else "sliding",) * read_layer_count(fields))
    return read_common(fields, "mistral", architecture, sliding_window=window, layer_kinds=kinds)


FAMILY = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    gguf_architecture=None,  # its GGUF files say "llama"
    configure=configure,
    forward=decoder.forward,
)
