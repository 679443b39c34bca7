"""Kimi K2.5 and K2.6, text: DeepSeek-V3, nested in a checkpoint whose vision tower is left out."""

from dataclasses import replace
from typing import Any

from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MULTIMODAL, read_text
from numaserve.workers.models.deepseek_v3 import deepseek_v3
from numaserve.workers.models.family import Family
from numaserve.workers.models.spec import ModelConfig

_PROJECTOR: dict[str, Any] = {"ignored_prefixes": (*MULTIMODAL["ignored_prefixes"], "mm_projector.")}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json, which holds the text model's as `text_config`."""
    config = deepseek_v3(read_text(fields), "kimi_k25", architecture)
    return replace(config, **MULTIMODAL | _PROJECTOR)


# llama.cpp names the files of the text model after DeepSeek-V3, whose family reads them.
FAMILY = Family(name="kimi_k25", architectures=("KimiK25ForConditionalGeneration",), configure=configure)
