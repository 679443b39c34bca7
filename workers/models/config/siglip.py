"""SigLIP (Zhai et al., 2023) in the configurations of models that see: the vision tower of Idefics3, SmolVLM and
Gemma 3."""

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
    positions = Table("position", "vision_model.embeddings.position_embedding", side**2, hidden, "v.position_embd")
    patch = vision.integer("patch_size", 1, tile)
    return TileTower(
        tuple(_block(vision, layer, hidden, eps) for layer in range(read_layer_count(vision))),
        factor,
        tile,
        PatchEmbedding("vision_model.embeddings.patch_embedding", patch, positions, "v.patch_embd"),
        LayerNorm("vision_model.post_layernorm", hidden, eps, "v.post_ln"),
        connector,
    )


def _block(vision: Fields, layer: int, hidden: int, eps: float) -> Block:
    at = f"vision_model.encoder.layers.{layer}."
    attention = read_attention(vision, at, hidden, Rotation(UNROTATED), _ATTENTION)
    activation = vision.choice("hidden_act", _ACTIVATIONS, "gelu_pytorch_tanh")
    mlp = read_mlp(vision, at, hidden, activation, _MLP)
    before, between = (LayerNorm(f"{at}layer_norm{each}", hidden, eps, f"{at}ln{each}") for each in (1, 2))
    return Block(before, attention, between, mlp)
