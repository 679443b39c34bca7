"""A family that the project does not have: every other layer has wider and fewer heads, and a sliding window."""

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import read_common
from numaserve.workers.models.config.rope import read_rope
from numaserve.workers.models.family import Family
from numaserve.workers.models.spec import ModelConfig


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json."""
    common = read_common(fields)
    wide_dim, window = fields.integer("wide_head_dim", 2, 512), fields.integer("sliding_window", 1, 2**20)
    wide = {
        "head_dim": wide_dim,
        "scale": wide_dim**-0.5,
        "kv_heads": fields.integer("wide_key_value_heads", 1, 2**10),
        "rotation": Rotation(read_rope(fields, wide_dim)),
        "mask": Mask(window),
    }

    def block(layer: int) -> Block:
        return common.block(layer, common.attention(layer, **wide if layer % 2 else {}))

    return common.model("two_geometries", architecture, block)


FAMILY = Family(name="two_geometries", architectures=("TwoGeometriesForCausalLM",), configure=configure)
