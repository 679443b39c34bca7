"""The layers that the blocks of most vision towers have: attention both ways, and an MLP with biases; and their
rotation by rows and columns."""

from numaserve.workers.layers.mixers.attention import Attention, AttentionNames
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames, PlainMlp
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE, read_head_dim
from numaserve.workers.models.config.rope import rope_fields
from numaserve.workers.program.ops.products import Activation
from numaserve.workers.program.rope import RopeConfig

VISION_AXIS = "vision_intermediate"  # of the MLP's columns, which are not those of the decoder's
_THETA, _MAX_THETA = 10000.0, 1e9


def read_axial_rope(vision: Fields) -> RopeConfig:
    """Return the rope of half of each head of `vision_config`, whose halves are rotated by the row and by the column of
    a patch."""
    dim = read_head_dim(vision)
    if dim % 4:
        raise vision.error(f"heads have {dim} dimensions, which must be a multiple of 4")
    older = vision.number("rope_theta", 1.0, _MAX_THETA, _THETA)
    return RopeConfig(theta=rope_fields(vision).number("rope_theta", 1.0, _MAX_THETA, older), rotary_dim=dim // 2)


def read_attention(
    vision: Fields, at: str, hidden: int, rotation: Rotation, names: AttentionNames, *, biased: bool = True
) -> Attention:
    """Return the attention of a block of `vision_config`, with as many heads of keys as of queries."""
    dim = read_head_dim(vision)
    heads = hidden // dim
    return Attention(
        at,
        hidden,
        heads,
        heads,
        dim,
        rotation,
        dim**-0.5,
        mask=Mask(bidirectional=True),
        biases="all" if biased else "none",
        names=names,
        rule="stored",
    )


def read_mlp(vision: Fields, at: str, hidden: int, activation: Activation, names: MlpNames) -> PlainMlp:
    """Return the MLP of a block of `vision_config`."""
    return PlainMlp(
        at,
        hidden,
        vision.integer("intermediate_size", 1, MAX_INTERMEDIATE),
        activation,
        names=names,
        axis_name=VISION_AXIS,
        biased=True,
        rule="stored",
    )
