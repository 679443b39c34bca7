"""GLM-4.7-Flash: DeepSeek-V3 whose config.json may list the kind of each layer's MLP."""

from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.latent import with_dense_layers
from numaserve.workers.models.deepseek_v3 import deepseek_v3
from numaserve.workers.models.family import Family
from numaserve.workers.models.spec import ModelConfig

_DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "n_routed_experts": 64,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1536,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.8,
    "n_group": 1,
    "topk_group": 1,
}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    fields = with_dense_layers(fields.with_defaults(**_DEFAULTS))
    return deepseek_v3(fields, "glm4_moe_lite", architecture)


# llama.cpp names the files of this model after DeepSeek-V3, whose family reads them.
FAMILY = Family(name="glm4_moe_lite", architectures=("Glm4MoeLiteForCausalLM",), configure=configure)
