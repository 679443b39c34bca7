"""DeepSeek-V3 and R1, Kimi K2, and models of their architecture: multi-head latent attention, experts chosen by
corrected sigmoid scores, within the best groups."""

from numaserve.workers.models.config import gguf_deepseek
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.latent import LATENT_DEFAULTS, read_deepseek, read_groups
from numaserve.workers.models.family import Family, GgufForm
from numaserve.workers.models.spec import ModelConfig

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
    return deepseek_v3(fields, "deepseek_v3", architecture)


def deepseek_v3(fields: Fields, family: str, architecture: str) -> ModelConfig:
    """Return the configuration of a model of this architecture, for the families that have it too."""
    fields = fields.with_defaults(**_DEFAULTS)
    fields.refuse("scoring_func", "sigmoid")
    fields.refuse("topk_method", "noaux_tc")
    return read_deepseek(
        fields,
        family,
        architecture,
        correction_bias=True,
        pairs=fields.flag("rope_interleave", True),
        scoring="sigmoid",
        renormalize=fields.flag("norm_topk_prob", True),
        group_score="top2",
        **read_groups(fields),
    )


GGUF = GgufForm(
    gguf_deepseek.ARCHITECTURE,
    accepts=gguf_deepseek.has_sigmoid_scores,
    values=gguf_deepseek.deepseek_values,
    rope=gguf_deepseek.mscale,
    equal_value_length=False,
)
FAMILY = Family(name="deepseek_v3", architectures=("DeepseekV3ForCausalLM",), configure=configure, gguf=GGUF)
