"""The vision tower of Llama 4 in config.json, and its image processor. The source is transformers 5.24,
models/llama4."""

from dataclasses import replace

from numaserve.workers.interface.images import Canvas, ImageInput
from numaserve.workers.layers.block import Block
from numaserve.workers.layers.class_tower import ClassTower
from numaserve.workers.layers.mixers.attention import AttentionNames
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames, PlainMlp
from numaserve.workers.layers.norm import LayerNorm
from numaserve.workers.layers.position_embedding import Table
from numaserve.workers.layers.vision import CHANNELS, Connector, PatchEmbedding
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE, read_layer_count
from numaserve.workers.models.config.image_processor import check_steps, read_channels, read_filter, read_rescale
from numaserve.workers.models.config.tower_block import read_attention, read_axial_rope, read_mlp
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.rope import RopeConfig

LLAMA4_PROJECTOR = "llama4"  # the type of its projector in GGUF files
_TOWER, _PROJECTOR = "vision_model.", "multi_modal_projector."
_ALIASES = ((_TOWER, _TOWER), (_PROJECTOR, _PROJECTOR))
_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 5632,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "vision_output_dim": 7680,
    "image_size": 448,
    "patch_size": 14,
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
}
_EPS = 1e-5  # of all norms, in the classes of transformers
_MAX_TILE, _MAX_TILES = 4096, 256
_ATTENTION = AttentionNames(o="self_attn.o_proj", gguf_o="attn_out")
_MLP = MlpNames(up="mlp.fc1", down="mlp.fc2")
_RATIOS = {0.5: 2}  # of pixel shuffle
_PROCESSORS = {f"Llama4ImageProcessor{kind}": None for kind in ("", "Fast")}
_BILINEAR = 2
_HALF = 0.5
_IMAGE_TOKEN = 200092


def seeing_llama4(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Return a text model with the tower of `fields`."""
    vision = fields.child("vision_config").with_defaults(**_DEFAULTS)
    return config.with_tower(_read_tower(vision, config.hidden_size), _ALIASES)


def _read_tower(vision: Fields, outputs: int) -> ClassTower:
    vision.refuse("num_channels", CHANNELS)
    vision.refuse("hidden_act", "gelu")
    vision.refuse("vision_feature_select_strategy", "default")
    hidden = vision.integer("hidden_size", 1, MAX_INTERMEDIATE)
    ratio = vision.number("pixel_shuffle_ratio", 0.0, 1.0, _HALF)
    if ratio not in _RATIOS:
        raise vision.error(f"pixel_shuffle_ratio={ratio:g} is not supported; supported is 0.5")
    factor, tile = _RATIOS[ratio], vision.integer("image_size", 1, _MAX_TILE)
    patch = vision.integer("patch_size", 1, tile)
    side = tile // patch
    if side % factor:
        raise vision.error(f"a tile has {side} patches in a row, which must be a multiple of {factor}")
    projected = vision.integer("projector_output_dim", 1, MAX_INTERMEDIATE)
    vision.refuse("projector_input_dim", projected)
    vision.refuse("vision_output_dim", projected)
    rope = replace(read_axial_rope(vision), shift=1)  # coordinates count from 1, since the class token has 0
    square = factor**2 * hidden
    vision.refuse("intermediate_size", square)
    return ClassTower(
        tuple(_block(vision, layer, hidden, rope) for layer in range(read_layer_count(vision))),
        factor,
        tile,
        _embedding(hidden, patch, side**2),
        LayerNorm(f"{_TOWER}layernorm_post", hidden, _EPS, "v.post_ln"),
        Connector(f"{_PROJECTOR}linear_1", projected, outputs, "mm.model.fc"),
        LayerNorm(f"{_TOWER}layernorm_pre", hidden, _EPS, "v.pre_ln"),
        _adapter(square, projected),
        rope,
    )


def _embedding(hidden: int, patch: int, patches: int) -> PatchEmbedding:
    positions = Table("position", f"{_TOWER}positional_embedding_vlm", patches + 1, hidden, "v.position_embd")
    last = Table("position", f"{_TOWER}class_embedding", 1, hidden, "v.class_embd", shift=-patches)
    module = f"{_TOWER}patch_embedding.linear"
    return PatchEmbedding(module, patch, positions, "v.patch_embd", last, biased=False, convolution=False)


def _adapter(square: int, projected: int) -> PlainMlp:
    names = MlpNames(up=f"{_TOWER}vision_adapter.mlp.fc1", down=f"{_TOWER}vision_adapter.mlp.fc2")
    gguf = MlpNames(up="mm.model.mlp.1", down="mm.model.mlp.2")
    return PlainMlp(
        "", projected, projected, "gelu", inputs=square, names=names, gguf=gguf, axis_name="merged", rule="stored"
    )


def _block(vision: Fields, layer: int, hidden: int, rope: RopeConfig) -> Block:
    at = f"{_TOWER}model.layers.{layer}."
    attention = read_attention(vision, at, hidden, Rotation(rope, pairs=True), _ATTENTION)
    mlp = read_mlp(vision, at, hidden, "gelu", _MLP)
    before, between = (
        LayerNorm(f"{at}{name}", hidden, _EPS, f"{at}ln{number}")
        for number, name in ((1, "input_layernorm"), (2, "post_attention_layernorm"))
    )
    return Block(before, attention, between, mlp)


def read_llama4_images(fields: Fields, processor: Fields, config: ModelConfig) -> ImageInput:
    """Map the settings of the image processor; what they leave out has the default of published ones."""
    tower = config.decoder.tower
    assert isinstance(tower, ClassTower)  # noqa: S101  every model with this reader has one
    processor.choice("image_processor_type", _PROCESSORS, "Llama4ImageProcessor")
    check_steps(processor)
    processor.refuse("resize_to_max_canvas", False)
    for edge in ("height", "width"):
        processor.child("size").refuse(edge, tower.tile)
    return ImageInput(
        sizes=Canvas.of(tower.tile, tower.features, processor.integer("max_patches", 1, _MAX_TILES, 16)),
        resample=read_filter(processor, _BILINEAR),
        do_resize=True,
        rescale=read_rescale(processor),
        mean=read_channels(processor, "image_mean"),
        std=read_channels(processor, "image_std"),
        token=fields.integer(
            "image_token_index" if fields.has("image_token_index") else "image_token_id",
            0,
            config.vocab_size - 1,
            _IMAGE_TOKEN,
        ),
        text="llama4",
        in_bf16=True,
    )
