"""ERNIE 4.5, dense: Llama whose rotated dimensions lie in pairs."""

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import read_common
from numaserve.workers.models.config.rope import read_rope
from numaserve.workers.models.family import Family, GgufForm, without_experts
from numaserve.workers.models.spec import ModelConfig

_DEFAULTS = {"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    return configure_text(fields, architecture, pairs=True)


def configure_text(fields: Fields, architecture: str, *, pairs: bool) -> ModelConfig:
    """Map config.json of a model whose rotated dimensions may lie in `pairs`. `use_bias`, of no published model, would
    put biases on the MLP too."""
    fields = fields.with_defaults(**_DEFAULTS)
    fields.refuse("use_bias", False)
    common = read_common(fields)
    rotation = Rotation(read_rope(fields, common.head_dim, default_theta=5e5), pairs=pairs)

    def block(layer: int) -> Block:
        return common.block(layer, common.attention(layer, rotation=rotation))

    return common.model("ernie4_5", architecture, block)


FAMILY = Family(
    name="ernie4_5",
    architectures=("Ernie4_5ForCausalLM",),
    configure=configure,
    gguf=GgufForm("ernie4_5", values=without_experts, pairs=True),
)
