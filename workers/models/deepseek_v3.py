"""DeepSeek-V3 and R1, and what has their architecture: multi-head latent attention, experts chosen by sigmoid scores,
corrected, within the best groups."""

from __future__ import annotations

from numaserve.workers.models import decoder
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.latent import (
    LATENT_DEFAULTS,
    SHARED_EXPERTS,
    read_deepseek,
    read_deepseek_experts,
    read_groups,
)
from numaserve.workers.models.family import Family
from numaserve.workers.models.spec import ModelConfig, MoeConfig

_DEFAULTS = LATENT_DEFAULTS | {
    "num_attention_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "routed_scaling_factor": 2.5,
    "n_group": 8,
    "topk_group": 4,
}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    fields = fields.with_defaults(**_DEFAULTS)
    fields.refuse("scoring_func", "sigmoid")
    fields.refuse("topk_method", "noaux_tc")
    moe, layers = read_deepseek_experts(fields)
    moe |= read_groups(fields, moe["num_experts"])
    renormalize, interleaved = fields.flag("norm_topk_prob", True), fields.flag("rope_interleave", True)
    moe_config = MoeConfig(**moe, scoring="sigmoid", renormalize=renormalize, correction_bias=True, group_score="top2")
    return read_deepseek(fields, "deepseek_v3", architecture, moe_config, layers, interleaved=interleaved)


FAMILY = Family(
    name="deepseek_v3",
    architectures=("DeepseekV3ForCausalLM",),
    gguf_architecture=None,  # its GGUF files say "deepseek2"
    configure=configure,
    forward=decoder.forward,
    moe_names=SHARED_EXPERTS,
)
