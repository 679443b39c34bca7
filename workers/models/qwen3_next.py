"""Qwen3-Next: Qwen3.5 with experts, whose projections of queries, keys, values and gates are fused by key head."""

from numaserve.workers.layers.mixers.gated_delta import GatedDeltaNames
from numaserve.workers.models.config.experts import read_qwen_experts
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gated_delta import hybrid_values, read_hybrid, read_hybrid_common
from numaserve.workers.models.config.gguf_experts import expert_values
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE
from numaserve.workers.models.family import Family, GgufForm, Values
from numaserve.workers.models.spec import ModelConfig

_DEFAULTS = {
    "num_key_value_heads": 2,
    "intermediate_size": 5632,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
}
_QKVZ, _BA = "linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default. It does not state the layer for multi-token
    prediction (MTP) that published checkpoints have."""
    fields = fields.with_defaults(**_DEFAULTS)
    common = read_hybrid_common(fields)
    experts_of = read_qwen_experts(
        common, shared=fields.integer("shared_expert_intermediate_size", 1, MAX_INTERMEDIATE)
    )
    names = GatedDeltaNames(qkv=_QKVZ, z=_QKVZ, b=_BA, a=_BA)
    return read_hybrid(common, "qwen3_next", architecture, experts_of, names=names, predictors=1)


def _gguf_values(metadata: Fields, values: Values) -> Values:
    return {**expert_values(metadata, values, renormalized=True), **hybrid_values(metadata)}


FAMILY = Family(
    name="qwen3_next",
    architectures=("Qwen3NextForCausalLM",),
    configure=configure,
    gguf=GgufForm("qwen3next", values=_gguf_values),
)
