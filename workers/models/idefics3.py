"""Idefics3 and SmolVLM: Llama with SigLIP as its vision tower, whose patches become tokens in squares."""

from dataclasses import replace

import numpy as np
from numaserve.workers.interface.images import ImageInput, Tiles
from numaserve.workers.layers.vision import Connector, TileTower
from numaserve.workers.models import llama
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE, read_text
from numaserve.workers.models.config.image_processor import check_steps, read_channels, read_filter, read_rescale
from numaserve.workers.models.config.siglip import MAX_TILE, read_side, read_siglip
from numaserve.workers.models.family import Family, GgufForm
from numaserve.workers.models.spec import ModelConfig

# Published checkpoints spell out only what differs from the classes of transformers.
_TEXT_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_VISION_DEFAULTS = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
    "layer_norm_eps": 1e-6,
}
_IMAGE_TOKEN = 128257
_MAX_FACTOR = 16
_MAX_EDGE = 1 << 16
# Fast and Pil are classes of the same processor.
_PROCESSORS = {f"{name}ImageProcessor{kind}": None for name in ("Idefics3", "SmolVLM") for kind in ("", "Fast", "Pil")}
_LANCZOS = 1

_PREFIXES = ("model.text_model.",)
_ALIASES = (("vision_model.", "model.vision_model."), ("connector.", "model.connector."))


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    text = read_text(fields, tied=False).with_defaults(**_TEXT_DEFAULTS)
    text.refuse("model_type", "llama")
    config = llama.configure(text, architecture)
    vision = fields.child("vision_config").with_defaults(**_VISION_DEFAULTS)
    tower = _read_tower(vision, fields.integer("scale_factor", 1, _MAX_FACTOR, 2), config.hidden_size)
    decoder = replace(config.decoder, tower=tower)
    return replace(config, family="idefics3", decoder=decoder, prefixes=_PREFIXES, aliases=_ALIASES)


def _read_tower(vision: Fields, factor: int, outputs: int) -> TileTower:
    side, hidden = read_side(vision), vision.integer("hidden_size", 1, MAX_INTERMEDIATE)
    sizes = f"image_size={vision.values['image_size']} and patch_size={vision.values['patch_size']}"
    if side % factor:
        raise vision.error(f"{sizes} make {side} patches in a row, which is no multiple of scale_factor={factor}")
    if not _has_plain_positions(side):
        raise vision.error(
            f"{sizes} make {side} patches in a row, which is not supported: transformers gives some of them other"
            " positions, depending on the processor. Published models have 26, 27 or 32"
        )
    connector = Connector("connector.modality_projection.proj", factor**2 * hidden, outputs, "mm.model.fc")
    return read_siglip(vision, factor, connector)


def _has_plain_positions(side: int) -> bool:
    """Return whether each of `side` patches in a row has its own position in transformers, which looks for fractions of
    the tile between bounds, both in fp32. So it is with all published models."""
    bounds = (1 / side + np.arange(side - 1) * (1 / side)).astype(np.float32)
    fractions = np.arange(side, dtype=np.float32) * (np.float32(1.0) / np.float32(side))
    return bool((np.searchsorted(bounds, fractions, side="right") == np.arange(side)).all())


def read_images(fields: Fields, processor: Fields, config: ModelConfig) -> ImageInput:
    """Map the settings of the image processor; what they leave out has transformers' default."""
    tower = config.decoder.tower
    assert isinstance(tower, TileTower)  # noqa: S101  every model of the family has one
    processor.choice("image_processor_type", _PROCESSORS, "Idefics3ImageProcessor")
    check_steps(processor)
    tile = processor.child("max_image_size").integer("longest_edge", 1, MAX_TILE, 364)
    if tile != tower.tile:
        raise processor.error(
            f"max_image_size: longest_edge={tile} is not supported; it must be image_size of config.json, {tower.tile}"
        )
    size = processor.child("size")
    for other in ("shortest_edge", "height", "width", "max_height", "max_width"):
        size.refuse(other)
    return ImageInput(
        sizes=Tiles(
            side=tile,
            longest_edge=size.integer("longest_edge", 1, _MAX_EDGE, 4 * 364),
            split=processor.flag("do_image_splitting", True),
            rows=tower.features,
        ),
        resample=read_filter(processor, _LANCZOS),
        do_resize=True,
        rescale=read_rescale(processor),
        mean=read_channels(processor, "image_mean"),
        std=read_channels(processor, "image_std"),
        token=fields.integer("image_token_id", 0, config.vocab_size - 1, _IMAGE_TOKEN),
        text="idefics3",
    )


FAMILY = Family(
    name="idefics3",
    architectures=("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
    configure=configure,
    gguf=GgufForm("llama", projectors=("idefics3",), pairs=True),
    images=read_images,
)
