"""DeepSeek-V2 and its kin: multi-head latent attention, experts chosen by softmax."""

from __future__ import annotations

from numaserve.workers.models import decoder
from numaserve.workers.models.family import Family, MoeNames
from numaserve.workers.models.fields import Fields
from numaserve.workers.models.hf_config import read_common
from numaserve.workers.models.mla_config import read_deepseek_experts, read_groups, read_latent_attention
from numaserve.workers.models.spec import ModelConfig, MoeConfig

_DEFAULTS = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
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
    return read_common(
        fields,
        "deepseek_v2",
        architecture,
        moe=MoeConfig(**moe, renormalize=False),
        moe_layers=layers,
        **read_latent_attention(fields, interleaved=True),
    )


FAMILY = Family(
    name="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM",),
    gguf_architecture="deepseek2",
    configure=configure,
    forward=decoder.forward,
    moe_names=MoeNames(shared="mlp.shared_experts"),
)
