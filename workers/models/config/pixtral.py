"""The vision tower of Pixtral in config.json, the projectors of Mistral 3 and of Pixtral, and their image processor.

The sources are transformers 5.24, models/pixtral, models/mistral3 and models/llava.
"""

from dataclasses import replace

from numaserve.workers.interface.images import Fitted, ImageInput
from numaserve.workers.layers.block import Block
from numaserve.workers.layers.grid_tower import GridEmbedding, GridTower, Merger
from numaserve.workers.layers.mixers.attention import AttentionNames
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import Mlp, MlpNames, PlainMlp
from numaserve.workers.layers.norm import NoNorm, Norm
from numaserve.workers.layers.vision import CHANNELS, Connector
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    read_layer_count,
)
from numaserve.workers.models.config.image_processor import CLIP, check_steps, read_channels, read_filter, read_rescale
from numaserve.workers.models.config.tower_block import VISION_AXIS, read_attention, read_axial_rope
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.products import Activation
from numaserve.workers.program.rope import RopeConfig

PIXTRAL_PROJECTOR = "pixtral"  # the type of its projector in GGUF files
_TOWER, _PROJECTOR = "vision_tower.", "multi_modal_projector."
# Published checkpoints have them at the top, and transformers 5 in the model.
_ALIASES = tuple((begin, prefix + begin) for begin in (_TOWER, _PROJECTOR) for prefix in ("", "model."))
_DEFAULTS = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 1024,
    "patch_size": 16,
    "hidden_act": "gelu",
}
# Where Mistral 3 states no tower.
_MISTRAL3_DEFAULTS = _DEFAULTS | {"image_size": 1540, "patch_size": 14}
_GATED: dict[str, Activation] = {"silu": "silu", "gelu": "geglu"}
_PLAIN: dict[str, Activation] = {"gelu": "gelu", "gelu_pytorch_tanh": "plain_gelu_tanh"}
_EPS = 1e-5  # of the tower's norms, in the classes of transformers
_MAX_PATCH, _MAX_FACTOR, _MAX_EDGE = 64, 16, 1 << 16
_ATTENTION = AttentionNames("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj", "attn_out")
_MLP = MlpNames("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj")
_PROCESSORS = {f"PixtralImageProcessor{kind}": None for kind in ("", "Fast", "Pil")}
_BICUBIC = 3
_IMAGE_TOKEN = 10
_BREAK = "v.token_embd."  # GGUF files repeat the embedding of a token in the tower's


def seeing_pixtral(config: ModelConfig, fields: Fields, *, llava: bool = False) -> ModelConfig:
    """Return a text model with the tower of `fields`, and with the projector of Mistral 3 or that of LLaVA."""
    seeing = config.with_tower(_read_tower(fields, config, llava=llava), _ALIASES)
    return replace(seeing, ignored_prefixes=(*seeing.ignored_prefixes, _BREAK))


def _read_tower(fields: Fields, config: ModelConfig, *, llava: bool) -> GridTower:
    """Return the tower of `vision_config`, whose features are those of the decoder."""
    vision = _vision(fields)
    vision.choice("model_type", {"pixtral": None}, "clip_vision_model" if llava else "pixtral")
    vision.refuse("num_channels", CHANNELS)
    hidden = vision.integer("hidden_size", 1, MAX_INTERMEDIATE)
    # Pairs have the frequencies of a rope over the whole head: those with even numbers are rotated by the row, those
    # with odd numbers by the column.
    row = read_axial_rope(vision)
    column = replace(row, kind="linear", factor=row.theta ** (1 / row.rotary_dim))
    embedding = GridEmbedding(
        f"{_TOWER}patch_conv",
        vision.integer("patch_size", 1, _MAX_PATCH),
        hidden,
        norm=Norm(f"{_TOWER}ln_pre", hidden, _EPS, "v.pre_ln"),
        gguf="v.patch_embd",
        biased=False,
    )
    factor = 1 if llava else fields.integer("spatial_merge_size", 1, _MAX_FACTOR, 2)
    return GridTower(
        tuple(_block(vision, layer, hidden, row) for layer in range(read_layer_count(vision))),
        factor,
        embedding,
        _projector(fields, config, hidden, factor, llava=llava),
        row,
        column,
        pairs_in_gguf=True,
    )


def _vision(fields: Fields) -> Fields:
    defaults = _DEFAULTS if fields.has("vision_config") else _MISTRAL3_DEFAULTS
    return fields.child("vision_config").with_defaults(**defaults)


def _block(vision: Fields, layer: int, hidden: int, rope: RopeConfig) -> Block:
    at = f"{_TOWER}transformer.layers.{layer}."
    attention = read_attention(vision, at, hidden, Rotation(rope), _ATTENTION, biased=False)
    mlp = Mlp(
        at,
        hidden,
        vision.integer("intermediate_size", 1, MAX_INTERMEDIATE),
        vision.choice("hidden_act", _GATED),
        names=_MLP,
        axis_name=VISION_AXIS,
        rule="stored",
    )
    before, between = (
        Norm(f"{at}{each}_norm", hidden, _EPS, f"{at}ln{number}") for number, each in ((1, "attention"), (2, "ffn"))
    )
    return Block(before, attention, between, mlp)


def _projector(fields: Fields, config: ModelConfig, hidden: int, factor: int, *, llava: bool) -> Merger:
    """Return the projector: two linear maps, and in Mistral 3 before these a norm and a linear map of a square to the
    columns of a patch."""
    _check_features(fields, llava=llava)
    outputs = config.hidden_size
    mlp = PlainMlp(
        "",
        outputs,
        outputs,
        fields.choice("projector_hidden_act", _PLAIN, "gelu"),
        inputs=hidden,
        names=MlpNames(up=f"{_PROJECTOR}linear_1", down=f"{_PROJECTOR}linear_2"),
        gguf=MlpNames(up="mm.1", down="mm.2"),
        axis_name="projected",
        biased=fields.flag("multimodal_projector_bias", llava),
        rule="stored",
    )
    if llava:
        return Merger(NoNorm(), mlp, factor)
    norm, square = config.decoder.norm, factor**2 * hidden
    assert isinstance(norm, Norm)  # noqa: S101  text models of the family have one
    merging = f"{_PROJECTOR}patch_merger.merging_layer"
    return Merger(
        Norm(f"{_PROJECTOR}norm", hidden, norm.eps, "mm.input_norm"),
        mlp,
        factor,
        # The checkpoint has the values of a channel next to each other, as `unfold` makes them.
        reduction=Connector(merging, square, hidden, "mm.patch_merger", rounds=hidden),
    )


def _check_features(fields: Fields, *, llava: bool) -> None:
    """Raise `OperatorError` unless the features are those after the last block."""
    layer = fields.integer("vision_feature_layer", -MAX_LAYERS, MAX_LAYERS, -2 if llava else -1)
    if layer not in (-1, read_layer_count(_vision(fields))):
        raise fields.error(f"vision_feature_layer={layer} is not supported; supported is -1, the last layer")
    if llava and fields.text("vision_feature_select_strategy", "default") != "full":
        raise fields.error("vision_feature_select_strategy must be 'full', since Pixtral has no patch to leave out")


def read_pixtral_images(fields: Fields, processor: Fields, config: ModelConfig) -> ImageInput:
    """Map the settings of the image processor; what they leave out has the default of published ones."""
    tower = config.decoder.tower
    assert isinstance(tower, GridTower)  # noqa: S101  every model with this reader has one
    processor.choice("image_processor_type", _PROCESSORS, "PixtralImageProcessor")
    check_steps(processor)
    processor.refuse("do_center_crop", False)
    size = processor.child("size")
    for other in ("shortest_edge", "height", "width", "max_height", "max_width"):
        size.refuse(other)
    vision = _vision(fields)
    # Files of GGUF models, and folders without settings, state the edge in the tower's configuration alone.
    longest = size.integer("longest_edge", 1, _MAX_EDGE, vision.integer("image_size", 1, _MAX_EDGE))
    processor = processor.with_defaults(**CLIP)
    square = tower.patch * tower.factor
    return ImageInput(
        sizes=Fitted.within_edge(square, longest),
        resample=read_filter(processor, _BICUBIC),
        do_resize=True,
        rescale=read_rescale(processor),
        mean=read_channels(processor, "image_mean", 0.0),
        std=read_channels(processor, "image_std", 1.0),
        token=_image_token(fields, config),
        text="pixtral",
    )


def _image_token(fields: Fields, config: ModelConfig) -> int:
    key = "image_token_index" if fields.has("image_token_index") else "image_token_id"
    return fields.integer(key, 0, config.vocab_size - 1, _IMAGE_TOKEN)
