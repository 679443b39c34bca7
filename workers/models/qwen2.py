"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and an optional sliding window on the later layers."""

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
from numaserve.workers.models.spec import LayerKind, ModelConfig


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json."""
    window, kinds = read_late_window(fields)
    return read_common(fields, "qwen2", architecture, qkv_bias=True, sliding_window=window, layer_kinds=kinds)


def read_late_window(fields: Fields) -> tuple[int | None, tuple[LayerKind, ...]]:
    """Qwen's sliding window: only with `use_sliding_window`, and then from layer `max_window_layers` on."""
    layers = read_layer_count(fields)
    window = read_sliding_window(fields, default=4096) if fields.flag("use_sliding_window", False) else None
    first = fields.integer("max_window_layers", 0, 2**16, 28)
    kinds: tuple[LayerKind, ...] = tuple(
        "sliding" if window is not None and layer >= first else "full" for layer in range(layers)
    )
    return window, read_layer_kinds(fields, kinds)


FAMILY = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    gguf_architecture="qwen2",
    configure=configure,
    forward=decoder.forward,
)
