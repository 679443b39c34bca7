"""LFM2 and LFM2.5, MoE: LFM2 with experts, chosen by sigmoid scores with a bias, in all layers but the first ones."""

from numaserve.workers.layers.experts import ExpertNames, Experts
from numaserve.workers.layers.layer import FeedForward
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.models.config.experts import read_experts
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_deepseek import SIGMOID
from numaserve.workers.models.config.gguf_experts import expert_values
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE, MAX_LAYERS
from numaserve.workers.models.family import Family, GgufForm, Values
from numaserve.workers.models.lfm2 import NAMES, lfm, lfm_values, read_lfm
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.experts import Routing

_DEFAULTS = {
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "moe_intermediate_size": 1792,
    "num_experts": 32,
    "num_experts_per_tok": 4,
}
_EXPERTS = ExpertNames(
    router="feed_forward.gate",
    correction_bias="feed_forward.expert_bias",
    experts="feed_forward.experts",
    each=MlpNames("w1", "w3", "w2"),
)


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    common = read_lfm(fields.with_defaults(**_DEFAULTS))
    fields = common.fields
    num_experts, top_k = read_experts(fields, "num_experts")
    routing = Routing(
        num_experts=num_experts,
        top_k=top_k,
        scoring="sigmoid",
        renormalize=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 0.0, 1e4, 1.0),
    )
    width = fields.integer("moe_intermediate_size", 1, MAX_INTERMEDIATE)
    dense = fields.integer("num_dense_layers", 0, MAX_LAYERS, 2)
    has_bias = fields.flag("use_expert_bias", True)

    def mlp(layer: int) -> FeedForward:
        if layer < dense:
            return common.mlp(layer, names=NAMES)
        return Experts(f"layers.{layer}.", common.hidden, routing, width, correction_bias=has_bias, names=_EXPERTS)

    return lfm(common, "lfm2_moe", architecture, mlp)


def _gguf_values(metadata: Fields, values: Values) -> Values:
    metadata.refuse("lfm2moe.expert_gating_func", SIGMOID)
    found = expert_values(metadata, values, renormalized=True, gating=(SIGMOID,))
    dense = metadata.integer("lfm2moe.leading_dense_block_count", 0, MAX_LAYERS, 0)
    return {
        **found,
        **lfm_values(metadata, values),
        "num_experts": found["num_local_experts"],
        "num_dense_layers": dense,
    }


FAMILY = Family(
    name="lfm2_moe",
    architectures=("Lfm2MoeForCausalLM",),
    configure=configure,
    gguf=GgufForm("lfm2moe", values=_gguf_values),
)
