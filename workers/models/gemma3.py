"""Gemma 3: Gemma 2 without soft caps, with q/k norms, five sliding layers to one full, and a rope for each kind.

EmbeddingGemma is bidirectional. Multimodal checkpoints have SigLIP as their vision tower; the tokens of an image see
each other.
"""

from dataclasses import replace
from math import isqrt

from numaserve.workers.interface.images import Frame, ImageInput, Tiles
from numaserve.workers.layers.norm import Norm
from numaserve.workers.layers.vision import MeanSquares, TileTower
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    MAX_INTERMEDIATE,
    MULTIMODAL,
    read_common,
    read_layer_kinds,
    read_text,
)
from numaserve.workers.models.config.image_processor import check_steps, read_channels, read_filter, read_rescale
from numaserve.workers.models.config.images_seen import seeing_images
from numaserve.workers.models.config.rope import read_ropes
from numaserve.workers.models.config.siglip import MAX_TILE, read_eps, read_side, read_siglip
from numaserve.workers.models.family import ROTARY_BUFFERS, TABLE_BUFFERS, Family, GgufForm, Values
from numaserve.workers.models.gemma2 import gemma, query_scalar
from numaserve.workers.models.spec import ModelConfig

# Published multimodal checkpoints spell out only what differs from these.
_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}


_MULTIMODAL = "Gemma3ForConditionalGeneration"
_VISION_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "layer_norm_eps": 1e-6,
}
# As published, and as versions of transformers save them.
_ALIASES = tuple(
    (begin, f"{outer}{saved}")
    for begin, saved in (
        ("vision_model.", "vision_tower.vision_model."),
        ("vision_model.", "vision_tower."),
        ("multi_modal_projector.", "multi_modal_projector."),
    )
    for outer in ("", "model.")
)
# SigLIP's vector of an image, which no text model reads.
_HEADS = tuple(f"{saved}head." for begin, saved in _ALIASES if begin == "vision_model.")
_PROCESSORS = {f"Gemma3ImageProcessor{kind}": None for kind in ("", "Fast", "Pil")}
_BILINEAR = 2
_IMAGE_TOKEN, _BEGIN, _END = 262144, 255999, 256000
_MAX_ROWS = 4096  # of features of an image


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json, of the text model or of the multimodal one that holds it as `text_config`."""
    outer = fields
    if architecture == _MULTIMODAL or fields.has("text_config"):  # a GGUF file names no class
        fields = read_text(fields)
    fields = fields.with_defaults(**_DEFAULTS)
    fields.refuse("is_causal", True)  # with windows of another width
    common = read_common(fields, plus_one=True, either=True)
    pattern = fields.integer("sliding_window_pattern", 1, 2**10, 6)
    slides = read_layer_kinds(fields, [bool((layer + 1) % pattern) for layer in range(common.layers)])
    full_theta = fields.number("rope_theta", 1.0, 1e12, 1e6)
    sliding_theta = fields.number("rope_local_base_freq", 1.0, 1e12, 1e4)
    ropes = read_ropes(fields, common.head_dim, full_theta=full_theta, sliding_theta=sliding_theta)
    config = gemma(common, "gemma3", architecture, slides, ropes=ropes, norms_of=common.head_norms, **MULTIMODAL)
    if not outer.has("vision_config"):
        return config
    config = seeing_images(config, _read_tower(outer, config.hidden_size), _ALIASES, [True] * config.num_layers)
    return replace(config, ignored_prefixes=(*config.ignored_prefixes, *_HEADS))


def _read_tower(fields: Fields, outputs: int) -> TileTower:
    vision = fields.child("vision_config").with_defaults(**_VISION_DEFAULTS)
    side, hidden = read_side(vision), vision.integer("hidden_size", 1, MAX_INTERMEDIATE)
    rows = fields.integer("mm_tokens_per_image", 1, _MAX_ROWS, 256)
    in_row = isqrt(rows)
    if in_row**2 != rows or side % in_row:
        raise fields.error(
            f"mm_tokens_per_image={rows} is not supported: it must be the square of a divisor of the {side} patches in"
            " a row of an image"
        )
    at = "multi_modal_projector."
    norm = Norm(f"{at}mm_soft_emb_norm", hidden, read_eps(vision), "mm.soft_emb_norm", plus_one=True)
    connector = MeanSquares(f"{at}mm_input_projection_weight", hidden, outputs, "mm.input_projection", mean_norm=norm)
    return read_siglip(vision, side // in_row, connector)


def read_images(fields: Fields, processor: Fields, config: ModelConfig) -> ImageInput:
    """Map the settings of the image processor; what they leave out has the default of published ones."""
    tower = config.decoder.tower
    assert isinstance(tower, TileTower)  # noqa: S101  every model with this reader has one
    processor.choice("image_processor_type", _PROCESSORS, "Gemma3ImageProcessor")
    check_steps(processor)
    processor.refuse("do_pan_and_scan", False)
    size = processor.child("size")
    edges = [size.integer(edge, 1, MAX_TILE, tower.tile) for edge in ("height", "width")]
    if edges != [tower.tile] * 2:
        raise processor.error(
            f"size {edges[0]} x {edges[1]} is not supported; both must be image_size of config.json, {tower.tile}"
        )
    most = config.vocab_size - 1
    token = fields.values.get("image_token_id", fields.values.get("image_token_index"))
    return ImageInput(
        sizes=Tiles(side=tower.tile, longest_edge=0, split=False, rows=tower.features),
        resample=read_filter(processor, _BILINEAR),
        do_resize=True,
        rescale=read_rescale(processor),
        mean=read_channels(processor, "image_mean"),
        std=read_channels(processor, "image_std"),
        token=fields.with_values(image_token_id=token).integer("image_token_id", 0, most, _IMAGE_TOKEN),
        frame=Frame(
            begin=fields.integer("boi_token_index", 0, most, _BEGIN),
            end=fields.integer("eoi_token_index", 0, most, _END),
            around="\n\n",
            marks=True,
        ),
        whole=config.sees_whole_images,
    )


_EMBEDDING = "gemma-embedding"


def _gguf_values(metadata: Fields, values: Values) -> Values:
    is_embedding = metadata.text("general.architecture") == _EMBEDDING
    return {**query_scalar(metadata, values), "is_causal": None, "use_bidirectional_attention": is_embedding}


FAMILY = Family(
    name="gemma3",
    architectures=("Gemma3ForCausalLM", _MULTIMODAL, "Gemma3TextModel"),
    configure=configure,
    gguf=GgufForm("gemma3", values=_gguf_values, others=(_EMBEDDING,), projectors=("", "gemma3")),
    buffers=(*ROTARY_BUFFERS, *TABLE_BUFFERS),
    images=read_images,
    needs_processor=False,
)
