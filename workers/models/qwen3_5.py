"""Qwen3.5, 3.6 and 3.8, dense: gated delta networks in three of four layers, gated attention in the fourth, and the
tower of Qwen3-VL without its deep features."""

from numaserve.workers.layers.mixers.gated_delta import GatedDeltaNames
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gated_delta import (
    hybrid_values,
    multimodal,
    read_hybrid,
    read_hybrid_common,
    read_multimodal,
    seeing_hybrid,
)
from numaserve.workers.models.config.grid_vision import GRID_PROJECTOR, read_grid_images
from numaserve.workers.models.family import GRID_BUFFERS, Family, GgufForm, Values, without_experts
from numaserve.workers.models.spec import ModelConfig


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json, of the text model or of the multimodal one that holds it as `text_config`."""
    common = read_hybrid_common(read_multimodal(fields).with_defaults(num_key_value_heads=4))
    config = read_hybrid(common, "qwen3_5", architecture, common.mlp, names=GatedDeltaNames(), **multimodal())
    return seeing_hybrid(config, fields, common.fields)


def _gguf_values(metadata: Fields, values: Values) -> Values:
    return {**without_experts(metadata, values), **hybrid_values(metadata)}


FAMILY = Family(
    name="qwen3_5",
    architectures=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    configure=configure,
    gguf=GgufForm("qwen35", values=_gguf_values, projectors=("", GRID_PROJECTOR)),
    buffers=GRID_BUFFERS,
    images=read_grid_images,
    needs_processor=False,
)
