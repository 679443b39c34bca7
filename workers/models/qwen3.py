"""Qwen3: Llama with an RMS norm on each query and key head, and heads that need not add up to the hidden size."""

from numaserve.workers.layers.block import Block
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import read_biases, read_common
from numaserve.workers.models.family import Family, GgufForm
from numaserve.workers.models.qwen2 import read_late_windows
from numaserve.workers.models.spec import ModelConfig


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json. A missing `head_dim` is 128, as in transformers."""
    common = read_common(fields.with_defaults(head_dim=128), either=True)
    windows = read_late_windows(fields)
    biases = read_biases(fields)

    def block(layer: int) -> Block:
        norms, mask = common.head_norms(layer), common.mask(windows[layer])
        return common.block(layer, common.attention(layer, norms=norms, mask=mask, biases=biases))

    return common.model("qwen3", architecture, block)


FAMILY = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    configure=configure,
    gguf=GgufForm("qwen3", others=("qwen3vl",)),  # without the tower, Qwen3-VL is Qwen3
)
