"""Kimi K2.5 and K2.6: DeepSeek-V3, nested in a checkpoint with a vision tower for images of any size."""

from dataclasses import replace
from typing import Any

from numaserve.workers.models import deepseek_v3
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MULTIMODAL, read_text
from numaserve.workers.models.config.moonvit import MOONVIT_PROJECTOR, read_moonvit_images, seeing_moonvit
from numaserve.workers.models.family import Family
from numaserve.workers.models.spec import ModelConfig

_PROJECTOR: dict[str, Any] = {"ignored_prefixes": (*MULTIMODAL["ignored_prefixes"], "mm_projector.")}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json, which holds the text model's as `text_config`."""
    config = deepseek_v3.deepseek_v3(read_text(fields), "kimi_k25", architecture)
    config = replace(config, **MULTIMODAL | _PROJECTOR)
    return seeing_moonvit(config, fields) if fields.has("vision_config") else config


# llama.cpp names the files of the text model after DeepSeek-V3, whose family reads them without a tower.
FAMILY = Family(
    name="kimi_k25",
    architectures=("KimiK25ForConditionalGeneration",),
    configure=configure,
    gguf=replace(deepseek_v3.GGUF, projectors=(MOONVIT_PROJECTOR,)),
    images=read_moonvit_images,
    needs_processor=False,
)
