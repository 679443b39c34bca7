"""Granite 4: Granite 3 with Mamba-2 in most layers or in none, and with experts, a shared MLP, or the MLP alone."""

from dataclasses import replace
from typing import Any

from numaserve.workers.layers.experts import ExpertNames, Experts
from numaserve.workers.layers.layer import FeedForward, Mixer
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.models.config.experts import read_experts
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_experts import expert_values, has_experts
from numaserve.workers.models.config.gguf_heads import heads_values
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE, read_common
from numaserve.workers.models.config.mamba2 import SpaceKeys, mamba2_values, read_mamba2
from numaserve.workers.models.family import Family, GgufForm, Values
from numaserve.workers.models.granite import factor_values, granite
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.experts import Routing

_DEFAULTS = {
    "intermediate_size": 11008,  # of experts
    "shared_intermediate_size": 1024,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
_IS_SPACE = {"attention": False, "full_attention": False, "mamba": True, "linear_attention": True}
_KEYS = SpaceKeys(
    module="mamba",
    heads="mamba_n_heads",
    groups="mamba_n_groups",
    state_dim="mamba_d_state",
    head_dim="mamba_d_head",
    taps="mamba_d_conv",
    bias="mamba_conv_bias",
    other_biases=("mamba_proj_bias",),
)
_INPUT = "input_linear"
_EACH = MlpNames(_INPUT, _INPUT, "output_linear")
_EXPERTS = ExpertNames(
    router="block_sparse_moe.router.layer",
    experts="block_sparse_moe",
    each=_EACH,
    shared="shared_mlp",
    shared_each=_EACH,
    stacked="in order",
)


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default. Attention has rope only on request."""
    fields = fields.with_defaults(**_DEFAULTS)
    common = read_common(fields)
    kinds = fields.texts("layer_types", common.layers) if fields.has("layer_types") else ["mamba"] * common.layers
    are_spaces = [Fields({"layer_types": kind}, fields.where).choice("layer_types", _IS_SPACE) for kind in kinds]
    if all(are_spaces):
        raise fields.error(f"all {common.layers} layers are of kind {kinds[0]}; at least one must be of kind attention")
    space_of = read_mamba2(replace(common, fields=_with_head_dim(fields)), _KEYS) if any(are_spaces) else None
    width = fields.integer("shared_intermediate_size", 1, MAX_INTERMEDIATE)
    dense: dict[str, Any] = {"names": _EACH.below("shared_mlp"), "intermediate": width}
    routing = _read_routing(fields)

    def mixer(layer: int) -> Mixer | None:
        return space_of(layer) if space_of is not None and are_spaces[layer] else None

    def mlp(layer: int) -> FeedForward:
        if routing is None:
            return common.mlp(layer, **dense)
        return Experts(f"layers.{layer}.", common.hidden, routing, common.intermediate, width, names=_EXPERTS)

    return granite(common, "granite_hybrid", architecture, mlp, positions="nope", mixer_of=mixer)


def _with_head_dim(fields: Fields) -> Fields:
    """Return the fields with the width of the heads of state spaces. Raises `OperatorError` for widths that do not fill
    the inner width."""
    heads, factor = fields.integer("mamba_n_heads", 1, 2**10), fields.integer("mamba_expand", 1, 2**4)
    inner = factor * fields.integer("hidden_size", 1, 2**17)
    if fields.values.get("mamba_d_head", "auto") == "auto":
        fields = fields.with_values(mamba_d_head=inner // heads)
    dim = fields.integer("mamba_d_head", 1, inner)
    if heads * dim != inner:
        raise fields.error(f"mamba_n_heads={heads} times mamba_d_head={dim} must be mamba_expand * hidden_size={inner}")
    return fields


def _read_routing(fields: Fields) -> Routing | None:
    """Return how experts are chosen; None if there are none."""
    if not fields.integer("num_local_experts", 0, 2**10):
        return None
    num_experts, top_k = read_experts(fields, "num_local_experts")
    return Routing(num_experts=num_experts, top_k=top_k)


def _gguf_values(metadata: Fields, values: Values) -> Values:
    experts: dict[str, Any] = {"num_local_experts": 0}
    if has_experts(metadata):
        experts = expert_values(metadata, values, renormalized=True)
    shared = metadata.optional_integer("granitehybrid.expert_shared_feed_forward_length", 1, MAX_INTERMEDIATE)
    return {
        **experts,
        **factor_values(metadata, values),
        **heads_values(metadata, "mamba"),
        **mamba2_values(metadata, _KEYS),
        "shared_intermediate_size": shared or values.get("intermediate_size"),
    }


FAMILY = Family(
    name="granite_hybrid",
    architectures=("GraniteMoeHybridForCausalLM",),
    configure=configure,
    gguf=GgufForm("granitehybrid", values=_gguf_values, pairs=True),
)
