"""Llama 2, 3 and 3.x, and models of their architecture (SmolLM2, TinyLlama, Yi)."""

from numaserve.workers.layers.block import Block
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_experts import has_no_experts
from numaserve.workers.models.config.huggingface import read_biases, read_common
from numaserve.workers.models.family import Family, GgufForm
from numaserve.workers.models.spec import ModelConfig


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json. `attention_bias` puts biases on q, k, v and o."""
    common = read_common(fields)
    biases = read_biases(fields)

    def block(layer: int) -> Block:
        return common.block(layer, common.attention(layer, biases=biases))

    return common.model("llama", architecture, block)


FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    configure=configure,
    gguf=GgufForm("llama", accepts=has_no_experts, pairs=True),
)
