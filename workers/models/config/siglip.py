"""SigLIP (Zhai et al., 2023) in the configurations of models that see: the vision tower of Idefics3, SmolVLM and
Gemma 3, and the blocks of that of PaddleOCR-VL."""

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.attention import AttentionNames
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.layers.norm import LayerNorm
from numaserve.workers.layers.position_embedding import Table
from numaserve.workers.layers.vision import CHANNELS, Connector, PatchEmbedding, TileTower
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE, read_layer_count
from numaserve.workers.models.config.tower_block import read_attention, read_mlp
from numaserve.workers.program.ops.products import Activation
from numaserve.workers.program.rope import UNROTATED

MAX_TILE = 4096  # pixels of a side
PATCHES = "vision_model.embeddings.patch_embedding"  # the module of the map of pixels
_ACTIVATIONS: dict[str, Activation] = {"gelu_pytorch_tanh": "plain_gelu_tanh", "gelu": "gelu"}
_ATTENTION = AttentionNames(o="self_attn.out_proj", gguf_o="attn_out")
_MLP = MlpNames(up="mlp.fc1", down="mlp.fc2")


def read_side(vision: Fields) -> int:
    """Return the patches in a row of a tile. Raises `OperatorError` for a tower of another kind."""
    vision.refuse("num_channels", CHANNELS)
    vision.refuse("head_dim")
    tile = vision.integer("image_size", 1, MAX_TILE)
    return tile // vision.integer("patch_size", 1, tile)


def read_eps(vision: Fields) -> float:
    """Return the epsilon of all norms."""
    return vision.number("layer_norm_eps", 1e-12, 1.0)


def read_siglip(vision: Fields, factor: int, connector: Connector) -> TileTower:
    """Return the tower, whose squares of `factor` x `factor` patches the `connector` makes features of."""
    hidden = vision.integer("hidden_size", 1, MAX_INTERMEDIATE)
    tile, side, eps = vision.integer("image_size", 1, MAX_TILE), read_side(vision), read_eps(vision)
    positions = positions_of(side, hidden)
    patch = vision.integer("patch_size", 1, tile)
    return TileTower(
        read_blocks(vision, Rotation(UNROTATED)),
        factor,
        tile,
        PatchEmbedding(PATCHES, patch, positions, "v.patch_embd"),
        last_norm(hidden, eps),
        connector,
    )


def read_blocks(vision: Fields, rotation: Rotation) -> tuple[Block, ...]:
    """Return the blocks, whose queries and keys have a `rotation`."""
    hidden, eps = vision.integer("hidden_size", 1, MAX_INTERMEDIATE), read_eps(vision)
    return tuple(_block(vision, layer, hidden, eps, rotation) for layer in range(read_layer_count(vision)))


def positions_of(side: int, hidden: int) -> Table:
    """Return the table of positions of `side` x `side` patches."""
    return Table("position", "vision_model.embeddings.position_embedding", side**2, hidden, "v.position_embd")


def last_norm(hidden: int, eps: float) -> LayerNorm:
    """Return the norm after the blocks."""
    return LayerNorm("vision_model.post_layernorm", hidden, eps, "v.post_ln")


def _block(vision: Fields, layer: int, hidden: int, eps: float, rotation: Rotation) -> Block:
    at = f"vision_model.encoder.layers.{layer}."
    attention = read_attention(vision, at, hidden, rotation, _ATTENTION)
    activation = vision.choice("hidden_act", _ACTIVATIONS, "gelu_pytorch_tanh")
    mlp = read_mlp(vision, at, hidden, activation, _MLP)
    before, between = (LayerNorm(f"{at}layer_norm{each}", hidden, eps, f"{at}ln{each}") for each in (1, 2))
    return Block(before, attention, between, mlp)
