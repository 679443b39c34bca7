"""SmolLM3: Llama with some layers without rope: every fourth, unless `no_rope_layers` names others."""

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    read_biases,
    read_common,
    read_layer_kinds,
    read_rotated,
    read_sliding_window,
    windows_of,
)
from numaserve.workers.models.config.rope import read_rope
from numaserve.workers.models.family import Family, GgufForm
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.rope import UNROTATED

_DEFAULTS = {"num_key_value_heads": 4, "tie_word_embeddings": True}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default. A GGUF file never says which layers are rotated,
    and llama.cpp takes the same default."""
    fields = fields.with_defaults(**_DEFAULTS)
    common = read_common(fields)
    rope = read_rope(fields, common.head_dim, default_theta=2e6)
    rotated = read_rotated(fields, common.layers)
    window = read_sliding_window(fields) if fields.flag("use_sliding_window", False) else None
    windows = windows_of(read_layer_kinds(fields, [not each for each in rotated]), window)
    biases = read_biases(fields)

    def block(layer: int) -> Block:
        rotation = Rotation(rope if rotated[layer] else UNROTATED)
        attention = common.attention(layer, rotation=rotation, mask=Mask(windows[layer]), biases=biases)
        return common.block(layer, attention)

    return common.model("smollm3", architecture, block)


FAMILY = Family(
    name="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    configure=configure,
    gguf=GgufForm("smollm3", pairs=True),
)
