"""Fields of Gemma 4's experts, which lie next to the MLP of each layer."""

from collections.abc import Callable
from dataclasses import replace

from numaserve.workers.layers.experts import ExpertNames, Experts
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.layers.norm import Norm
from numaserve.workers.layers.scaled_block import ExpertsBeside
from numaserve.workers.models.config.experts import read_experts
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE, Common
from numaserve.workers.program.ops.experts import Routing
from numaserve.workers.program.ops.products import GateActivation

_NAMES = ExpertNames(
    router="router.proj",
    experts="experts",
    each=MlpNames("gate_up_proj", "gate_up_proj", "down_proj"),
    factors="router.per_expert_scale",
    stacked="in order",
)


def read_experts_beside(
    common: Common, activation: GateActivation, *, apart: bool
) -> Callable[[int], ExpertsBeside | None]:
    """Return the function that makes the experts of a layer; None where the model has none. `apart`: the checkpoint has
    a tensor for each expert.

    The weights of a token's experts are divided by their sum, and multiplied by a factor of each expert. The router's
    norm has a weight that the checkpoint calls a scale.
    """
    fields = common.fields
    if not fields.flag("enable_moe_block", False):
        return lambda layer: None
    num_experts, top_k = read_experts(
        fields.with_values(num_experts_per_tok=fields.values.get("top_k_experts")), "num_experts"
    )
    width = fields.integer("moe_intermediate_size", 1, MAX_INTERMEDIATE)
    routing = Routing(num_experts=num_experts, top_k=top_k)
    names = replace(_NAMES, each=ExpertNames().each, stacked=None) if apart else _NAMES

    def beside(layer: int) -> ExpertsBeside:
        at = f"layers.{layer}."

        def norm(module: str, gguf: str) -> Norm:
            return common.norm(at + module, at + gguf)

        router_norm = common.norm(f"{at}router", f"{at}ffn_gate_inp", vector="scale", factor=common.hidden**-0.5)
        return ExpertsBeside(
            norm=norm("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
            router_norm=router_norm,
            experts=Experts(at, common.hidden, routing, width, activation=activation, names=names),
            post_mlp_norm=norm("post_feedforward_layernorm_1", "post_ffw_norm_1"),
            post_norm=norm("post_feedforward_layernorm_2", "post_ffw_norm_2"),
        )

    return beside
