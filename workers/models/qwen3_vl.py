"""Qwen3-VL: Qwen3 with a vision tower for images of any size, and with rotary coordinates."""

from dataclasses import replace

from numaserve.workers.models import qwen3
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.grid_vision import GRID_PROJECTOR, read_grid_images, seeing
from numaserve.workers.models.config.huggingface import read_text
from numaserve.workers.models.family import GRID_BUFFERS, Family, GgufForm
from numaserve.workers.models.spec import ModelConfig

SECTIONS = 24, 20, 20
DEEP = 8, 16, 24  # blocks of the tower


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json. Unlike other classes of transformers, this one does not tie the head by default."""
    text = read_text(fields, tied=False)
    config = seeing(qwen3.configure(text, architecture), fields, text, SECTIONS, DEEP)
    return replace(config, family="qwen3_vl")


FAMILY = Family(
    name="qwen3_vl",
    architectures=("Qwen3VLForConditionalGeneration",),
    configure=configure,
    gguf=GgufForm("qwen3vl", projectors=(GRID_PROJECTOR,)),
    buffers=GRID_BUFFERS,
    images=read_grid_images,
    needs_processor=False,
)
