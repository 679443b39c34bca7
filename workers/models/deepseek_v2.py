"""DeepSeek-V2 and its kin: multi-head latent attention, experts chosen by softmax."""

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
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1407,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
}
_GROUPED = {"greedy": False, "group_limited_greedy": True}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    fields = fields.with_defaults(**_DEFAULTS)
    fields.refuse("scoring_func", "softmax")
    fields.refuse("norm_topk_prob", False)  # transformers does not read it
    moe, layers = read_deepseek_experts(fields)
    if fields.choice("topk_method", _GROUPED, "greedy"):
        moe |= read_groups(fields, moe["num_experts"])
    moe_config = MoeConfig(**moe, renormalize=False)
    return read_deepseek(fields, "deepseek_v2", architecture, moe_config, layers, interleaved=True)


FAMILY = Family(
    name="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM",),
    gguf_architecture="deepseek2",
    configure=configure,
    forward=decoder.forward,
    moe_names=SHARED_EXPERTS,
)
