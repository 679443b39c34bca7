"""The layers that the blocks of most vision towers have: attention both ways, and an MLP with biases."""

from numaserve.workers.layers.mixers.attention import Attention, AttentionNames
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames, PlainMlp
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE, read_head_dim
from numaserve.workers.program.ops.products import Activation

VISION_AXIS = "vision_intermediate"  # of the MLP's columns, which are not those of the decoder's


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
