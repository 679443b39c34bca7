"""The vision tower of Kimi K2.5 and K2.6 in config.json, and its image processor. The source is transformers 5.24,
models/kimi_k25; published settings have the names of the model's own code."""

from numaserve.workers.interface.images import ImageInput, Padded
from numaserve.workers.layers.block import Block
from numaserve.workers.layers.grid_tower import GridEmbedding, GridTower, Merger
from numaserve.workers.layers.mixers.attention import AttentionNames
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.layers.norm import LayerNorm
from numaserve.workers.layers.position_embedding import Table
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.grid_vision import square_mlp
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE, read_layer_count
from numaserve.workers.models.config.image_processor import check_steps, read_channels, read_filter, read_rescale
from numaserve.workers.models.config.tower_block import read_attention, read_axial_rope, read_mlp
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.rope import RopeConfig

MOONVIT_PROJECTOR = "kimik25"  # the type of its projector in GGUF files
_TOWER, _PROJECTOR = "vision_tower.", "mm_projector."
_ALIASES = ((_TOWER, _TOWER), (_PROJECTOR, _PROJECTOR))
_NAMES = {
    "vt_hidden_size": "hidden_size",
    "vt_intermediate_size": "intermediate_size",
    "vt_num_attention_heads": "num_attention_heads",
    "vt_num_hidden_layers": "num_hidden_layers",
    "init_pos_emb_height": "pos_emb_height",
    "init_pos_emb_width": "pos_emb_width",
}
_DEFAULTS = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 14,
    "pos_emb_height": 64,
    "pos_emb_width": 64,
    "merge_kernel_size": [2, 2],
}
_EPS = 1e-5  # of the tower's norms, in the classes of transformers
_MAX_PATCH, _MAX_FACTOR, _MAX_SIDE, _MAX_PATCHES = 64, 16, 1 << 10, 1 << 20
_ATTENTION = AttentionNames("wqkv", "wqkv", "wqkv", "wo", "attn_out")
_MLP = MlpNames(up="mlp.fc0", down="mlp.fc1")
_PROCESSORS = {f"{name}ImageProcessor{kind}": None for name in ("Kimi_K25", "KimiK25") for kind in ("", "Fast")}
_PROCESSORS |= {"KimiK25VisionProcessor": None}
_SETTINGS = "media_proc_cfg"  # of published processors
_BICUBIC = 3
_PATCHES, _LONGEST = 16384, 512
_IMAGE_TOKEN = 163605


def seeing_moonvit(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Return a text model with the tower of `fields`."""
    return config.with_tower(_read_tower(fields, config.hidden_size), _ALIASES)


def _read_tower(fields: Fields, outputs: int) -> GridTower:
    """Return the tower of `vision_config`, whose features have `outputs` columns."""
    given = fields.child("vision_config")
    renamed = {ours: given.values[theirs] for theirs, ours in _NAMES.items() if given.has(theirs)}
    vision = given.with_values(**renamed).with_defaults(**_DEFAULTS)
    _check_kind(vision)
    hidden, rope = vision.integer("hidden_size", 1, MAX_INTERMEDIATE), read_axial_rope(vision)
    for columns in (vision.values.get("mm_hidden_size"), fields.values.get("projection_hidden_size")):
        if columns not in (None, hidden):
            raise vision.error(f"the projector takes {columns} columns, and the tower has {hidden}")
    factor = _read_factor(vision)
    eps = vision.number("projector_ln_eps", 1e-12, 1.0, fields.number("projection_layer_norm_eps", 1e-12, 1.0, _EPS))
    names = MlpNames(up=f"{_PROJECTOR}proj.0", down=f"{_PROJECTOR}proj.2")
    return GridTower(
        tuple(_block(vision, layer, hidden, rope) for layer in range(read_layer_count(vision))),
        factor,
        _embedding(vision, hidden),
        Merger(
            LayerNorm(f"{_PROJECTOR}pre_norm", hidden, eps, "mm.input_norm"),
            square_mlp(factor**2 * hidden, outputs, names, MlpNames(up="mm.1", down="mm.2")),
            factor,
        ),
        rope,
        rope,
        norm=LayerNorm(f"{_TOWER}encoder.final_layernorm", hidden, _EPS, "v.post_ln"),
        columns_first=True,
        pairs_in_gguf=True,
        plain=True,
    )


def _check_kind(vision: Fields) -> None:
    """Raise `OperatorError` for variants of the tower that no published model has."""
    vision.refuse("pos_emb_type", "divided_fixed")
    vision.refuse("merge_type", "sd2_tpool")
    vision.refuse("mm_projector_type", "patchmerger")
    vision.refuse("projector_hidden_act", "gelu")
    vision.refuse("hidden_act", "gelu_pytorch_tanh")


def _read_factor(vision: Fields) -> int:
    kernel = vision.integers("merge_kernel_size", 2, _MAX_FACTOR)
    if len(kernel) != 2 or kernel[0] != kernel[1]:
        raise vision.error(f"merge_kernel_size={list(kernel)} must be two equal numbers")
    return kernel[0]


def _embedding(vision: Fields, hidden: int) -> GridEmbedding:
    side = vision.integer("pos_emb_height", 1, _MAX_SIDE)
    vision.refuse("pos_emb_width", side)
    at = f"{_TOWER}patch_embed."
    positions = Table("position", f"{at}pos_emb", side**2, hidden, "v.position_embd", gridded=True)
    patch = vision.integer("patch_size", 1, _MAX_PATCH)
    return GridEmbedding(
        f"{at}proj", patch, hidden, positions=positions, gguf="v.patch_embd", stretched=True, cubic=True
    )


def _block(vision: Fields, layer: int, hidden: int, rope: RopeConfig) -> Block:
    at = f"{_TOWER}encoder.blocks.{layer}."
    attention = read_attention(vision, at, hidden, Rotation(rope, pairs=True, alternating=True), _ATTENTION)
    mlp = read_mlp(vision, at, hidden, "plain_gelu_tanh", _MLP)
    before, between = (LayerNorm(f"{at}norm{number}", hidden, _EPS, f"{at}ln{number + 1}") for number in (0, 1))
    return Block(before, attention, between, mlp)


def read_moonvit_images(fields: Fields, processor: Fields, config: ModelConfig) -> ImageInput:
    """Map the settings of the image processor; what they leave out has the default of published ones."""
    tower = config.decoder.tower
    assert isinstance(tower, GridTower)  # noqa: S101  every model with this reader has one
    processor.choice("image_processor_type", _PROCESSORS, "Kimi_K25ImageProcessor")
    settings = processor.child(_SETTINGS) if processor.has(_SETTINGS) else processor
    check_steps(settings)
    settings.refuse("fixed_output_tokens")
    settings.refuse("patch_size", tower.patch)
    settings.refuse("merge_kernel_size", tower.factor, [tower.factor] * 2)
    settings.refuse("merge_size", tower.factor)
    patches = settings.integer("max_patches", 1, _MAX_PATCHES, _PATCHES)
    longest = settings.child("size").integer("max_height", tower.factor, _MAX_SIDE, _LONGEST)
    key = "media_placeholder_token_id" if fields.has("media_placeholder_token_id") else "image_token_id"
    return ImageInput(
        sizes=Padded.of(
            tower.patch,
            tower.factor,
            settings.integer("in_patch_limit", 1, _MAX_PATCHES, patches),
            settings.integer("patch_limit_on_one_side", tower.factor, _MAX_SIDE, longest),
        ),
        resample=read_filter(settings, _BICUBIC),
        do_resize=True,
        rescale=read_rescale(settings),
        mean=read_channels(settings, "image_mean"),
        std=read_channels(settings, "image_std"),
        token=fields.integer(key, 0, config.vocab_size - 1, _IMAGE_TOKEN),
    )
