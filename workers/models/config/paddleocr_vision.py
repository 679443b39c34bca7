"""The vision tower of PaddleOCR-VL in config.json, and its image processor. The source is transformers 5.24,
models/paddleocr_vl."""

from numaserve.workers.interface.images import ImageInput, Widened
from numaserve.workers.layers.grid_tower import GridEmbedding, GridTower, Merger
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.layers.norm import LayerNorm
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.grid_vision import grid_images, square_mlp
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE
from numaserve.workers.models.config.image_processor import CLIP
from numaserve.workers.models.config.siglip import PATCHES, last_norm, positions_of, read_blocks, read_eps, read_side
from numaserve.workers.models.config.tower_block import read_axial_rope
from numaserve.workers.models.spec import ModelConfig

PADDLEOCR_PROJECTOR = "paddleocr"  # the type of its projector in GGUF files
_TOWER, _PROJECTOR = "vision_model.", "mlp_AR."
# Published checkpoints have the first of either, and models of transformers the second.
_ALIASES = (
    (_TOWER, "visual.vision_model."),
    (_TOWER, "model.visual.vision_model."),
    (_PROJECTOR, "mlp_AR."),
    (_PROJECTOR, "model.projector."),
)
_DEFAULTS = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "spatial_merge_size": 2,
}
_MAX_FACTOR = 16
_PROJECTOR_EPS = 1e-5
_IMAGE_TOKEN = 100295
_PROCESSORS = {f"PaddleOCRVLImageProcessor{kind}": None for kind in ("", "Fast", "Pil")}
_BOUNDS = 384**2, 1536**2  # pixels of an image, in the class of transformers


def seeing_paddleocr(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Return a text model with the tower of `fields`."""
    vision = fields.child("vision_config").with_defaults(**_DEFAULTS)
    return config.with_tower(_read_tower(vision, config.hidden_size), _ALIASES)


def _read_tower(vision: Fields, outputs: int) -> GridTower:
    """Return the tower of `vision_config`, whose features have `outputs` columns."""
    hidden, side, eps = vision.integer("hidden_size", 1, MAX_INTERMEDIATE), read_side(vision), read_eps(vision)
    factor, rope = vision.integer("spatial_merge_size", 1, _MAX_FACTOR), read_axial_rope(vision)
    patch, positions = vision.integer("patch_size", 1, side), positions_of(side, hidden)
    names = MlpNames(up=f"{_PROJECTOR}linear_1", down=f"{_PROJECTOR}linear_2")
    projector = Merger(
        LayerNorm(f"{_PROJECTOR}pre_norm", hidden, _PROJECTOR_EPS, "mm.input_norm"),
        square_mlp(factor**2 * hidden, outputs, names, MlpNames(up="mm.1", down="mm.2")),
        factor,
    )
    return GridTower(
        read_blocks(vision, Rotation(rope)),
        factor,
        GridEmbedding(PATCHES, patch, hidden, positions=positions, gguf="v.patch_embd", stretched=True),
        projector,
        rope,
        rope,
        norm=last_norm(hidden, eps),
    )


def read_paddleocr_images(fields: Fields, processor: Fields, config: ModelConfig) -> ImageInput:
    """Map the settings of the image processor; what they leave out has transformers' default."""
    processor.choice("image_processor_type", _PROCESSORS, "PaddleOCRVLImageProcessor")
    fields = fields.with_defaults(image_token_id=_IMAGE_TOKEN)
    return grid_images(fields, processor.with_defaults(**CLIP), config, _BOUNDS, Widened)
