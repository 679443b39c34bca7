"""SmolLM3: Llama with some layers without rope: every fourth, unless `no_rope_layers` names others."""

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    MAX_LAYERS,
    read_biases,
    read_common,
    read_layer_kinds,
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


def read_rotated(fields: Fields, layers: int) -> list[bool]:
    """Return whether each layer is rotated: despite its name, `no_rope_layers` has a 1 for layers that are."""
    if fields.has("no_rope_layers"):
        listed = fields.integers("no_rope_layers", 0, 1)
        if len(listed) < layers:
            raise fields.error(f"no_rope_layers has {len(listed)} entries for {layers} layers")
        return [bool(each) for each in listed[:layers]]
    interval = fields.integer("no_rope_layer_interval", 1, MAX_LAYERS, 4)
    return [bool((layer + 1) % interval) for layer in range(layers)]


FAMILY = Family(
    name="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    configure=configure,
    gguf=GgufForm("smollm3", pairs=True),
)
