"""Qwen3-VL-MoE: Qwen3-VL with experts, which published checkpoints have together, input columns first."""

from dataclasses import replace
from functools import partial

from numaserve.workers.layers.experts import ExpertNames
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.models import qwen3_moe
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_experts import expert_values
from numaserve.workers.models.config.grid_vision import GRID_PROJECTOR, read_grid_images, seeing
from numaserve.workers.models.config.huggingface import read_text
from numaserve.workers.models.family import GRID_BUFFERS, Family, GgufForm
from numaserve.workers.models.qwen3_vl import DEEP, SECTIONS
from numaserve.workers.models.spec import ModelConfig

_TOGETHER = ExpertNames(each=MlpNames("gate_up_proj", "gate_up_proj", "down_proj"), stacked="turned")


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json. Quantized checkpoints have a tensor for each expert. The weights of a token's experts are always
    divided by their sum."""
    text = read_text(fields, tied=False).with_values(norm_topk_prob=True)
    names = ExpertNames() if fields.has("quantization_config") else _TOGETHER
    config = qwen3_moe.configure(text, architecture, names=names)
    return replace(seeing(config, fields, text, SECTIONS, DEEP), family="qwen3_vl_moe")


FAMILY = Family(
    name="qwen3_vl_moe",
    architectures=("Qwen3VLMoeForConditionalGeneration",),
    configure=configure,
    gguf=GgufForm("qwen3vlmoe", values=partial(expert_values, renormalized=True), projectors=(GRID_PROJECTOR,)),
    buffers=GRID_BUFFERS,
    images=read_grid_images,
    needs_processor=False,
)
