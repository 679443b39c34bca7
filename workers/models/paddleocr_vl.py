"""PaddleOCR-VL: ERNIE 4.5 with rotary coordinates, and with SigLIP as its vision tower for images of any size."""

from dataclasses import replace

from numaserve.workers.models import ernie4_5
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MULTIMODAL, read_text
from numaserve.workers.models.config.paddleocr_vision import (
    PADDLEOCR_PROJECTOR,
    read_paddleocr_images,
    seeing_paddleocr,
)
from numaserve.workers.models.config.rotary_axes import by_axes
from numaserve.workers.models.family import GRID_BUFFERS, TABLE_BUFFERS, Family, GgufForm
from numaserve.workers.models.spec import ModelConfig

_SECTIONS = 16, 24, 24
# The tower's attention pool, and positions of packed images, which no class of transformers has.
_UNUSED = (
    "packing_position_embedding.",
    *(
        f"{prefix}vision_model.{each}"
        for prefix in ("visual.", "model.visual.", "")
        for each in ("head.", "embeddings.packing_position_embedding.")
    ),
)
_TEXT_DEFAULTS = {
    "vocab_size": 103424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "max_position_embeddings": 131072,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json, whose fields of the text are its own in published files; what it leaves out has transformers'
    default. A GGUF file without one of the tower has no `vision_config`."""
    text = (read_text(fields) if fields.has("text_config") else fields).with_defaults(**_TEXT_DEFAULTS)
    config = replace(ernie4_5.configure_text(text, architecture, pairs=False), family="paddleocr_vl")
    if not fields.has("vision_config"):
        return config
    decoder = by_axes(config.decoder, text, _SECTIONS, interleaved=False)
    config = replace(config, decoder=decoder, prefixes=MULTIMODAL["prefixes"], ignored_prefixes=_UNUSED)
    return seeing_paddleocr(config, fields)


FAMILY = Family(
    name="paddleocr_vl",
    architectures=("PaddleOCRVLForConditionalGeneration",),
    configure=configure,
    gguf=GgufForm("paddleocr", projectors=("", PADDLEOCR_PROJECTOR)),
    buffers=(*GRID_BUFFERS, *TABLE_BUFFERS),
    images=read_paddleocr_images,
)
