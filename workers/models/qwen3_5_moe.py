"""Qwen3.5, 3.6 and 3.8, MoE: Qwen3.5 with experts, and a gated shared expert, in every layer."""

from numaserve.workers.layers.experts import ExpertNames
from numaserve.workers.layers.mixers.gated_delta import GatedDeltaNames
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.models.config.experts import read_qwen_experts
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gated_delta import (
    hybrid_values,
    multimodal,
    read_hybrid,
    read_hybrid_common,
    read_multimodal,
    seeing_hybrid,
)
from numaserve.workers.models.config.gguf_experts import expert_values
from numaserve.workers.models.config.grid_vision import GRID_PROJECTOR, read_grid_images
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE
from numaserve.workers.models.family import GRID_BUFFERS, Family, GgufForm, Values
from numaserve.workers.models.spec import ModelConfig

_DEFAULTS = {
    "num_key_value_heads": 2,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
_TOGETHER = ExpertNames(each=MlpNames("gate_up_proj", "gate_up_proj", "down_proj"), stacked="in order")


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json, of the text model or of the multimodal one that holds it as `text_config`. The weights of a
    token's experts are always divided by their sum. Quantized checkpoints have a tensor for each expert."""
    names = ExpertNames() if fields.has("quantization_config") else _TOGETHER
    outer, fields = fields, read_multimodal(fields).with_defaults(**_DEFAULTS)
    fields = fields.with_defaults(intermediate_size=fields.values["moe_intermediate_size"])
    common = read_hybrid_common(fields.with_values(norm_topk_prob=True))
    shared = fields.integer("shared_expert_intermediate_size", 1, MAX_INTERMEDIATE)
    experts_of = read_qwen_experts(common, shared=shared, names=names)
    config = read_hybrid(common, "qwen3_5_moe", architecture, experts_of, names=GatedDeltaNames(), **multimodal())
    return seeing_hybrid(config, outer, common.fields)


def _gguf_values(metadata: Fields, values: Values) -> Values:
    return {**expert_values(metadata, values, renormalized=True), **hybrid_values(metadata)}


FAMILY = Family(
    name="qwen3_5_moe",
    architectures=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    configure=configure,
    gguf=GgufForm("qwen35moe", values=_gguf_values, projectors=("", GRID_PROJECTOR)),
    buffers=GRID_BUFFERS,
    images=read_grid_images,
    needs_processor=False,
)
