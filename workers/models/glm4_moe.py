"""GLM-4.5 to 4.7: DeepSeek-V3's experts after attention that rotates half of each head."""

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.query_key_norms import NoNorms
from numaserve.workers.models.config import gguf_deepseek
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import read_biases, read_common
from numaserve.workers.models.config.latent import read_deepseek_experts, read_groups, read_skipped
from numaserve.workers.models.family import Family, GgufForm, Values
from numaserve.workers.models.spec import ModelConfig

_DEFAULTS = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
}
_ARCHITECTURE = "glm4moe"


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default. `attention_bias` puts biases on q, k and v."""
    fields = fields.with_defaults(**_DEFAULTS)
    common = read_common(fields)
    experts_of = read_deepseek_experts(
        common,
        correction_bias=True,
        scoring="sigmoid",
        renormalize=fields.flag("norm_topk_prob", True),
        group_score="top2",
        **read_groups(fields),
    )
    is_normed = fields.flag("use_qk_norm", False)
    biases = read_biases(fields, of="qkv")

    def block(layer: int) -> Block:
        at = f"layers.{layer}."
        # GGUF files call this norm one after attention.
        mlp_norm = common.norm(f"{at}post_attention_layernorm", f"{at}post_attention_norm")
        norms = common.head_norms(layer) if is_normed else NoNorms()
        attention = common.attention(layer, norms=norms, biases=biases)
        return common.block(layer, attention, experts_of(layer), mlp_norm=mlp_norm)

    return common.model("glm4_moe", architecture, block, skipped_layers=read_skipped(fields))


def _gguf_values(metadata: Fields, values: Values) -> Values:
    metadata.refuse(f"{_ARCHITECTURE}.expert_gating_func", 0, gguf_deepseek.SIGMOID)  # 0: llama.cpp takes sigmoid
    return gguf_deepseek.expert_values(metadata, _ARCHITECTURE)


FAMILY = Family(
    name="glm4_moe",
    architectures=("Glm4MoeForCausalLM",),
    configure=configure,
    gguf=GgufForm(_ARCHITECTURE, values=_gguf_values),
)
