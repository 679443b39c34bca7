"""The vision tower of Gemma 4 in config.json, or the embedder of images of the unified one, and their image
processor."""

from typing import Any

from numaserve.workers.interface.images import Frame, Grid, ImageInput
from numaserve.workers.layers.block import Block
from numaserve.workers.layers.clipped import ClippedAttention, ClippedBlock, ClippedMlp, Clips
from numaserve.workers.layers.mixers.attention import Attention, AttentionNames
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.query_key_norms import HeadNorms
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import Mlp, MlpNames
from numaserve.workers.layers.norm import LayerNorm, Norm
from numaserve.workers.layers.patch_tower import NormedEmbedding, PatchTower
from numaserve.workers.layers.pooled_tower import AXES, PlacedEmbedding, PooledTower, Pooler
from numaserve.workers.layers.position_embedding import Table
from numaserve.workers.layers.vision import CHANNELS
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    MAX_INTERMEDIATE,
    read_activation,
    read_head_dim,
    read_layer_count,
)
from numaserve.workers.models.config.image_processor import check_steps, read_filter, read_rescale
from numaserve.workers.models.config.tower_block import VISION_AXIS
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.rope import RopeConfig

UNIFIED = "gemma4_unified_vision"  # the type of a `vision_config` without a tower
ALIASES = (("vision_tower.", "model.vision_tower."), ("embed_vision.", "model.embed_vision."))
PATCH_ALIASES = (("vision_embedder.", "model.vision_embedder."), ALIASES[1])
_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "pooling_kernel_size": 3,
    "patch_size": 16,
    "position_embedding_size": 10240,
}
_UNIFIED_DEFAULTS = {
    "mm_embed_dim": 3840,
    "mm_posemb_size": 1120,
    "rms_norm_eps": 1e-6,
    "pooling_kernel_size": 3,
    "patch_size": 16,
}
_EPS = 1e-5  # of the embedder's norms, in the classes of transformers
_NAMES = AttentionNames(
    "self_attn.q_proj.linear",
    "self_attn.k_proj.linear",
    "self_attn.v_proj.linear",
    "self_attn.o_proj.linear",
    "attn_out",
)
_MLP = MlpNames("mlp.gate_proj.linear", "mlp.up_proj.linear", "mlp.down_proj.linear")
_MAX_PATCH, _MAX_FACTOR, _MAX_PLACES = 64, 16, 1 << 16
_THETA = 100.0
_CLASSES = "Gemma4ImageProcessor", "Gemma4UnifiedImageProcessor"
_PROCESSORS = {f"{each}{backend}": None for each in _CLASSES for backend in ("", "Fast", "Pil")}
_BICUBIC = 3
_ROWS = {str(rows): rows for rows in (70, 140, 280, 560, 1120)}  # of features of the largest image
_HALF, _NONE, _ALL = (0.5, 0.5, 0.5), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
_IMAGE_TOKEN, _BEGIN, _END = 258880, 255999, 258882


def read_pooled_tower(fields: Fields, outputs: int) -> PooledTower:
    """Return the tower of `vision_config`, whose features have `outputs` columns."""
    vision = fields.child("vision_config").with_defaults(**_DEFAULTS)
    vision.refuse("attention_bias", False)
    vision.refuse("num_key_value_heads", vision.values["num_attention_heads"])
    hidden, dim = vision.integer("hidden_size", 1, MAX_INTERMEDIATE), read_head_dim(vision)
    if dim % (2 * AXES):
        raise vision.error(f"head_dim={dim} must be a multiple of {2 * AXES}")
    parameters = vision.child("rope_parameters")
    parameters.refuse("rope_type", "axial", "default")
    theta = parameters.number("rope_theta", 1.0, 1e12, _THETA)
    rope = RopeConfig(theta=theta, rotary_dim=dim // AXES)
    places = vision.integer("position_embedding_size", 1, _MAX_PLACES)
    at = "vision_tower.patch_embedder."
    table = Table("position", f"{at}position_embedding_table", AXES * places, hidden, "v.position_embd")
    patch, factor = _read_square(vision)
    eps = vision.number("rms_norm_eps", 1e-12, 1.0)
    return PooledTower(
        tuple(_block(vision, layer, hidden, rope) for layer in range(read_layer_count(vision))),
        factor,
        PlacedEmbedding(f"{at}input_proj", patch, table, "v.patch_embd"),
        Pooler(hidden, outputs, eps, vision.flag("standardize", False)),
        rope,
    )


def read_patch_tower(fields: Fields, outputs: int) -> PatchTower:
    """Return the embedder of a `vision_config` without a tower, whose features have `outputs` columns. Its patches are
    the squares of other models."""
    vision = fields.child("vision_config").with_defaults(**_UNIFIED_DEFAULTS)
    patch, factor = _read_square(vision)
    vision.refuse("model_patch_size", patch * factor)
    hidden = vision.integer("mm_embed_dim", 1, MAX_INTERMEDIATE)
    vision.refuse("output_proj_dims", hidden)
    places = vision.integer("mm_posemb_size", 1, _MAX_PLACES)
    at, pixels = "vision_embedder.", CHANNELS * (patch * factor) ** 2
    table = Table("position", f"{at}pos_embedding", AXES * places, hidden, "v.position_embd")
    # Channels of a pixel lie next to each other in the checkpoint.
    of_pixels = LayerNorm(f"{at}patch_ln1", pixels, _EPS, "v.patch_norm.1", rounds=pixels // CHANNELS)
    of_map, of_sum = (
        LayerNorm(f"{at}{name}", hidden, _EPS, f"v.patch_norm.{number}")
        for number, name in ((2, "patch_ln2"), (3, "pos_norm"))
    )
    norms = of_pixels, of_map, of_sum
    # The norm is of the stream itself, not of its product with the square root of its columns.
    pooler = Pooler(hidden, outputs, vision.number("rms_norm_eps", 1e-12, 1.0) * hidden, standardized=False)
    embedding = NormedEmbedding(f"{at}patch_dense", patch * factor, table, "v.patch_embd", norms=norms)
    return PatchTower((), 1, embedding, pooler)


def _read_square(vision: Fields) -> tuple[int, int]:
    """Return the pixels of a side of a patch, and the patches of a side of a square."""
    return vision.integer("patch_size", 1, _MAX_PATCH), vision.integer("pooling_kernel_size", 1, _MAX_FACTOR)


def _block(vision: Fields, layer: int, hidden: int, rope: RopeConfig) -> Block:
    at, dim, eps = f"vision_tower.encoder.layers.{layer}.", read_head_dim(vision), vision.number("rms_norm_eps", 0, 1)
    heads = vision.integer("num_attention_heads", 1, MAX_INTERMEDIATE)
    rotation = Rotation(rope, parts=AXES)
    order = rotation.order(dim)
    q, k = (Norm(f"{at}self_attn.{each}_norm", dim, eps, f"{at}attn_{each}_norm", order=order) for each in "qk")
    attention: dict[str, Any] = {
        "at": at,
        "hidden": hidden,
        "query_heads": heads,
        "kv_heads": heads,
        "head_dim": dim,
        "rotation": rotation,
        "scale": 1.0,
        "norms": HeadNorms(q, k, of_values=True),
        "mask": Mask(bidirectional=True),
        "names": _NAMES,
        "rule": "stored",
    }
    mlp: dict[str, Any] = {
        "at": at,
        "hidden": hidden,
        "intermediate": vision.integer("intermediate_size", 1, MAX_INTERMEDIATE),
        "activation": read_activation(vision, "hidden_activation", "gelu_pytorch_tanh"),
        "names": _MLP,
        "axis_name": VISION_AXIS,
        "rule": "stored",
    }
    norms = {
        "input_norm": ("input_layernorm", "ln1"),
        "post_attention_norm": ("post_attention_layernorm", "attn_post_norm"),
        "mlp_norm": ("pre_feedforward_layernorm", "ln2"),
        "post_mlp_norm": ("post_feedforward_layernorm", "ffn_post_norm"),
    }
    made: dict[str, Any] = {name: Norm(at + of, hidden, eps, at + gguf) for name, (of, gguf) in norms.items()}
    if not vision.flag("use_clipped_linears", False):
        return Block(attention=Attention(**attention), mlp=Mlp(**mlp), **made)
    of_heads = _clips(at, "self_attn.{}_proj", ("q", "k", "v", "o"), ("attn_q", "attn_k", "attn_v", "attn_out"))
    of_mlp = _clips(at, "mlp.{}_proj", ("gate", "up", "down"), ("ffn_gate", "ffn_up", "ffn_down"))
    return ClippedBlock(
        attention=ClippedAttention(**attention, clips=of_heads), mlp=ClippedMlp(**mlp, clips=of_mlp), **made
    )


def _clips(at: str, module: str, names: tuple[str, ...], gguf: tuple[str, ...]) -> tuple[Clips, ...]:
    return tuple(Clips(at + module.format(name), at + in_file) for name, in_file in zip(names, gguf, strict=True))


def read_pooled_images(fields: Fields, processor: Fields, config: ModelConfig) -> ImageInput:
    """Map the settings of the image processor; what they leave out has the default of published ones.

    Values are not normalized; a tower itself maps them to -1 to 1, as a mean and a deviation of one half do.
    """
    tower = config.decoder.tower
    assert isinstance(tower, PooledTower | PatchTower)  # noqa: S101  every model with this reader has one
    processor.choice("image_processor_type", _PROCESSORS, "Gemma4ImageProcessor")
    check_steps(processor, normalizes=False)
    patch, factor = _read_square(fields.child("vision_config").with_defaults(**_DEFAULTS))
    processor.refuse("patch_size", patch)
    processor.refuse("pooling_kernel_size", factor)
    rows = processor.with_values(max_soft_tokens=str(processor.values.get("max_soft_tokens") or 280))
    most, square = config.vocab_size - 1, patch * factor
    count = rows.choice("max_soft_tokens", _ROWS)
    if count * tower.factor > tower.side:
        raise processor.error(
            f"max_soft_tokens={count} makes images of {count * tower.factor} patches in a row, and the model has places"
            f" for {tower.side}"
        )
    mean, std = (_HALF, _HALF) if isinstance(tower, PooledTower) else (_NONE, _ALL)
    return ImageInput(
        sizes=Grid(square=square, least_pixels=square**2, pixels=count * square**2, fills=True),
        resample=read_filter(processor, _BICUBIC),
        do_resize=True,
        rescale=read_rescale(processor),
        mean=mean,
        std=std,
        token=fields.integer("image_token_id", 0, most, _IMAGE_TOKEN),
        frame=Frame(
            begin=fields.integer("boi_token_id", 0, most, _BEGIN), end=fields.integer("eoi_token_id", 0, most, _END)
        ),
        whole=config.sees_whole_images,
    )
