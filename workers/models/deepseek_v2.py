"""DeepSeek-V2, and models of its architecture: multi-head latent attention, experts chosen by softmax."""

from numaserve.workers.models.config import gguf_deepseek
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.latent import LATENT_DEFAULTS, read_deepseek, read_groups
from numaserve.workers.models.family import Family, GgufForm
from numaserve.workers.models.spec import ModelConfig

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
    groups = read_groups(fields) if fields.choice("topk_method", _GROUPED, "greedy") else {}
    return read_deepseek(fields, "deepseek_v2", architecture, renormalize=False, **groups)


FAMILY = Family(
    name="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM",),
    configure=configure,
    gguf=GgufForm(
        gguf_deepseek.ARCHITECTURE,
        accepts=lambda metadata: not gguf_deepseek.has_sigmoid_scores(metadata),
        values=gguf_deepseek.deepseek_values,
        rope=gguf_deepseek.mscale,
        equal_value_length=False,
    ),
)
