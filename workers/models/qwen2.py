"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and an optional sliding window on the later layers."""

from numaserve.workers.layers.block import Block
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    read_common,
    read_layer_count,
    read_layer_kinds,
    read_sliding_window,
    windows_of,
)
from numaserve.workers.models.family import Family, GgufForm
from numaserve.workers.models.spec import ModelConfig


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json."""
    common = read_common(fields, either=True)
    windows = read_late_windows(fields)

    def block(layer: int) -> Block:
        return common.block(layer, common.attention(layer, biases="qkv", mask=common.mask(windows[layer])))

    return common.model("qwen2", architecture, block)


def read_late_windows(fields: Fields) -> list[int | None]:
    """Return Qwen's sliding window: only with `use_sliding_window`, and then from layer `max_window_layers` on."""
    window = read_sliding_window(fields, default=4096) if fields.flag("use_sliding_window", False) else None
    first = fields.integer("max_window_layers", 0, 2**16, 28)
    slides = [window is not None and layer >= first for layer in range(read_layer_count(fields))]
    return windows_of(read_layer_kinds(fields, slides), window)


FAMILY = Family(name="qwen2", architectures=("Qwen2ForCausalLM",), configure=configure, gguf=GgufForm("qwen2"))
