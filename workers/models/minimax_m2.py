"""MiniMax-M2: experts in every layer, chosen by sigmoid scores with a bias, and norms over all heads."""

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.experts import ExpertNames, Experts
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.models.config.experts import read_experts
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_deepseek import SIGMOID
from numaserve.workers.models.config.gguf_experts import expert_values
from numaserve.workers.models.config.huggingface import read_common
from numaserve.workers.models.config.rope import read_rope
from numaserve.workers.models.family import Family, GgufForm, Values
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.experts import Routing

_ARCHITECTURE = "minimax-m2"
_DEFAULTS = {"num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8}
_NAMES = ExpertNames(
    router="block_sparse_moe.gate",
    correction_bias="block_sparse_moe.e_score_correction_bias",
    experts="block_sparse_moe.experts",
    each=MlpNames(gate="w1", up="w3", down="w2"),
)


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default. Published files state the rotated dimensions of a
    head, and that there are multi-token prediction (MTP) layers, which they do not have."""
    fields = fields.with_defaults(**_DEFAULTS)
    _refuse_variants(fields)
    common = read_common(fields)
    if fields.has("rotary_dim"):
        rotated = fields.integer("rotary_dim", 2, common.head_dim)
        fields = fields.with_defaults(partial_rotary_factor=rotated / common.head_dim)
    rotation = Rotation(read_rope(fields, common.head_dim, default_theta=5e6))
    num_experts, top_k = read_experts(fields, "num_local_experts")
    routing = Routing(num_experts=num_experts, top_k=top_k, scoring="sigmoid")

    def block(layer: int) -> Block:
        experts = Experts(
            f"layers.{layer}.", common.hidden, routing, common.intermediate, correction_bias=True, names=_NAMES
        )
        attention = common.attention(layer, norms=common.all_heads_norms(layer), rotation=rotation)
        return common.block(layer, attention, experts)

    return common.model("minimax_m2", architecture, block)


def _refuse_variants(fields: Fields) -> None:
    fields.refuse("qk_norm_type", "per_layer")
    fields.refuse("scoring_func", "sigmoid")
    fields.refuse("use_routing_bias", True)
    fields.refuse("shared_intermediate_size", 0)
    linear = [kind for kind in fields.integers("attn_type_list", 0, 1) if kind != 1]
    if linear:
        raise fields.error("attn_type_list holds 0; linear attention is not supported, every layer must be 1")


def _gguf_values(metadata: Fields, values: Values) -> Values:
    metadata.refuse(f"{_ARCHITECTURE}.expert_gating_func", SIGMOID)
    found = expert_values(metadata, values, renormalized=True, gating=(SIGMOID,))
    return {**found, "intermediate_size": found["moe_intermediate_size"]}


FAMILY = Family(
    name="minimax_m2",
    architectures=("MiniMaxM2ForCausalLM",),
    configure=configure,
    gguf=GgufForm(_ARCHITECTURE, values=_gguf_values),
)
