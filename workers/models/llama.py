"""Llama 2, 3 and 3.x, and models of their architecture (SmolLM2, TinyLlama, Yi)."""

from numaserve.workers.layers.block import Block
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_experts import has_no_experts
from numaserve.workers.models.config.huggingface import read_biases, read_common
from numaserve.workers.models.family import Family, GgufForm
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.rows import Pooling

_BIDIRECTIONAL = "LlamaBidirectionalModel"  # NVIDIA's llama-nemotron-embed
_POOLINGS: dict[str, Pooling] = {"avg": "mean", "cls": "cls", "last": "last"}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json. `attention_bias` puts biases on q, k, v and o."""
    if architecture == _BIDIRECTIONAL:
        fields = fields.with_values(is_causal=False)
    common = read_common(fields, either=True)
    biases = read_biases(fields)

    def block(layer: int) -> Block:
        return common.block(layer, common.attention(layer, biases=biases, mask=common.mask()))

    config = common.model("llama", architecture, block)
    return config.pooled(fields.choice("pooling", _POOLINGS, "avg")) if architecture == _BIDIRECTIONAL else config


FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM", _BIDIRECTIONAL),
    configure=configure,
    gguf=GgufForm("llama", accepts=has_no_experts, pairs=True),
)
