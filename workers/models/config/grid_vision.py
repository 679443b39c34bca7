"""The vision tower of Qwen3-VL and Qwen3.5 in config.json, and the image processors of grids."""

from dataclasses import replace
from math import isqrt

from numaserve.workers.interface.images import Grid, ImageInput
from numaserve.workers.layers.block import Block
from numaserve.workers.layers.grid_tower import GridEmbedding, GridTower, Merger
from numaserve.workers.layers.mixers.attention import AttentionNames
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames, PlainMlp
from numaserve.workers.layers.norm import LayerNorm
from numaserve.workers.layers.position_embedding import Table
from numaserve.workers.layers.vision import CHANNELS
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    MAX_INTERMEDIATE,
    MULTIMODAL,
    read_layer_count,
)
from numaserve.workers.models.config.image_processor import check_steps, read_channels, read_filter, read_rescale
from numaserve.workers.models.config.rotary_axes import Sections, by_axes
from numaserve.workers.models.config.tower_block import read_attention, read_axial_rope, read_mlp
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.products import Activation
from numaserve.workers.program.rope import RopeConfig

GRID_PROJECTOR = "qwen3vl_merger"  # the type of its projector in GGUF files
ALIASES = (("visual.", "model.visual."),)
_NAMES = {"depth": "num_hidden_layers", "num_heads": "num_attention_heads"}  # the first is that of published files
_DEFAULTS = {
    "num_hidden_layers": 27,
    "hidden_size": 1152,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 2304,
}
_ACTIVATIONS: dict[str, Activation] = {"gelu_pytorch_tanh": "plain_gelu_tanh", "gelu": "gelu"}
_EPS = 1e-6  # of all norms, in the classes of transformers
_MAX_PATCH, _MAX_FACTOR, _MAX_FRAMES, _MAX_POSITIONS = 64, 16, 8, 1 << 20
_MAX_PIXELS = 1 << 32
_ATTENTION = AttentionNames("attn.qkv", "attn.qkv", "attn.qkv", "attn.proj", "attn_out")
_MLP = MlpNames(up="mlp.linear_fc1", down="mlp.linear_fc2")
# Fast and Pil are classes of the same processor.
_PROCESSORS = {f"Qwen2VLImageProcessor{kind}": None for kind in ("", "Fast", "Pil")}
_BICUBIC = 3
_LEAST, _MOST = 65536, 16777216  # pixels of an image, in published settings


def read_grid_tower(fields: Fields, outputs: int, deep: tuple[int, ...] = ()) -> GridTower:
    """Return the tower of `vision_config`, whose features have `outputs` columns. `deep` are the blocks whose streams
    become features too, where config.json names none."""
    given = fields.child("vision_config")
    renamed = {ours: given.values[theirs] for theirs, ours in _NAMES.items() if given.has(theirs)}
    vision = given.with_values(**renamed).with_defaults(**_DEFAULTS)
    vision.refuse("in_channels", CHANNELS)
    vision.refuse("out_hidden_size", outputs)
    hidden = vision.integer("hidden_size", 1, MAX_INTERMEDIATE)
    layers, factor = read_layer_count(vision), vision.integer("spatial_merge_size", 1, _MAX_FACTOR)
    after = (
        vision.integers("deepstack_visual_indexes", 0, layers - 1) if vision.has("deepstack_visual_indexes") else deep
    )
    rope = read_axial_rope(vision)
    if sorted(set(after)) != list(after):
        raise vision.error(f"deepstack_visual_indexes={list(after)} must be ascending")
    return GridTower(
        tuple(_block(vision, layer, hidden, rope) for layer in range(layers)),
        factor,
        _embedding(vision, hidden),
        _merger("visual.merger.", ("v.post_ln", "mm.0", "mm.2"), hidden, factor, outputs),
        rope,
        rope,
        tuple(_deep_merger(index, layer, hidden, factor, outputs) for index, layer in enumerate(after)),
        after,
    )


def _embedding(vision: Fields, hidden: int) -> GridEmbedding:
    count = vision.integer("num_position_embeddings", 1, _MAX_POSITIONS)
    if isqrt(count) ** 2 != count:
        raise vision.error(f"num_position_embeddings={count} must be a square")
    positions = Table("position", "visual.pos_embed", count, hidden, "v.position_embd")
    patch = vision.integer("patch_size", 1, _MAX_PATCH)
    frames = vision.integer("temporal_patch_size", 1, _MAX_FRAMES)
    return GridEmbedding("visual.patch_embed.proj", patch, hidden, frames, positions, gguf="v.patch_embd")


def _block(vision: Fields, layer: int, hidden: int, rope: RopeConfig) -> Block:
    at = f"visual.blocks.{layer}."
    attention = read_attention(vision, at, hidden, Rotation(rope), _ATTENTION)
    mlp = read_mlp(vision, at, hidden, vision.choice("hidden_act", _ACTIVATIONS), _MLP)
    before, between = (LayerNorm(f"{at}norm{each}", hidden, _EPS, f"{at}ln{each}") for each in (1, 2))
    return Block(before, attention, between, mlp)


def _merger(at: str, gguf: tuple[str, ...], hidden: int, factor: int, outputs: int, *, merged: bool = False) -> Merger:
    norm, up, down = gguf
    square = factor**2 * hidden
    names = MlpNames(up=f"{at}linear_fc1", down=f"{at}linear_fc2")
    mlp = square_mlp(square, outputs, names, MlpNames(up=up, down=down))
    return Merger(LayerNorm(f"{at}norm", square if merged else hidden, _EPS, norm), mlp, factor, merged)


def square_mlp(square: int, outputs: int, names: MlpNames, gguf: MlpNames) -> PlainMlp:
    """Return the MLP that makes a feature of `outputs` columns of the `square` columns of a square of patches."""
    return PlainMlp(
        "",
        outputs,
        square,
        "gelu",
        inputs=square,
        names=names,
        gguf=gguf,
        axis_name="merged",
        biased=True,
        rule="stored",
    )


def _deep_merger(index: int, layer: int, hidden: int, factor: int, outputs: int) -> Merger:
    at, gguf = f"visual.deepstack_merger_list.{index}.", f"v.deepstack.{layer}."
    return _merger(at, (f"{gguf}norm", f"{gguf}fc1", f"{gguf}fc2"), hidden, factor, outputs, merged=True)


def read_grid_images(fields: Fields, processor: Fields, config: ModelConfig) -> ImageInput:
    """Map the settings of the image processor; what they leave out has the default of published ones."""
    processor.choice("image_processor_type", _PROCESSORS, "Qwen2VLImageProcessor")
    return grid_images(fields, processor, config, (_LEAST, _MOST))


def grid_images(
    fields: Fields, processor: Fields, config: ModelConfig, bounds: tuple[int, int], sizes: type[Grid] = Grid
) -> ImageInput:
    """Map the settings of an image processor of this kind. `bounds` are the least and the most pixels of an image where
    the settings have none."""
    tower = config.decoder.tower
    assert isinstance(tower, GridTower)  # noqa: S101  every model with this reader has one
    check_steps(processor)
    processor.refuse("patch_size", tower.patch)
    processor.refuse("temporal_patch_size", tower.embedding.frames or 1)
    processor.refuse("merge_size", tower.factor)
    size = processor.child("size")
    names = (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))
    # Older files name the bounds outside of `size`, and these then count.
    least, most = (
        processor.integer(name, 1, _MAX_PIXELS, size.integer(edge, 1, _MAX_PIXELS, bound))
        for (name, edge), bound in zip(names, bounds, strict=True)
    )
    return ImageInput(
        sizes=sizes(square=tower.patch * tower.factor, least_pixels=least, pixels=most),
        resample=read_filter(processor, _BICUBIC),
        do_resize=True,
        rescale=read_rescale(processor),
        mean=read_channels(processor, "image_mean"),
        std=read_channels(processor, "image_std"),
        token=fields.integer("image_token_id", 0, config.vocab_size - 1),
    )


def seeing(
    config: ModelConfig, fields: Fields, text: Fields, sections: Sections, deep: tuple[int, ...] = ()
) -> ModelConfig:
    """Return a text model with the tower of `fields`, and with rotary coordinates. `sections` and `deep` are
    defaults."""
    tower = read_grid_tower(fields, config.hidden_size, deep)
    decoder = by_axes(config.decoder, text, sections, interleaved=True)
    return replace(config, decoder=decoder, prefixes=MULTIMODAL["prefixes"]).with_tower(tower, ALIASES)
