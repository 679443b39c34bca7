"""Kimi Linear: Kimi Delta Attention in most layers and latent attention without positions in the others, experts as in
DeepSeek-V3."""

from collections.abc import Callable
from typing import Any

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.experts import ExpertNames
from numaserve.workers.layers.mixers.kimi_delta import KimiDelta
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_deepseek import SIGMOID, latent_values
from numaserve.workers.models.config.gguf_heads import heads_values
from numaserve.workers.models.config.huggingface import Common, read_common, read_layer_count, read_layer_kinds
from numaserve.workers.models.config.latent import (
    LATENT_DEFAULTS,
    MAX_DIM,
    read_deepseek_experts,
    read_groups,
    read_latent_attention,
    with_dense_layers,
)
from numaserve.workers.models.family import Family, GgufForm, Values
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.caches import MAX_CONV_TAPS, MAX_KEY_DIM

_MAX_HEADS = 2**10
_LINEAR = "linear_attention"

_DEFAULTS = LATENT_DEFAULTS | {
    "q_lora_rank": None,
    "rms_norm_eps": 1e-5,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1024,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.446,
    "n_group": 1,
    "topk_group": 1,
    "linear_num_heads": 32,
    "linear_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
# Names in published files, and in those that transformers saves.
_NAMES = {
    "num_experts": "n_routed_experts",
    "num_local_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "model_max_length": "max_position_embeddings",
}
_LINEAR_NAMES = {
    "num_heads": "linear_num_heads",
    "head_dim": "linear_head_dim",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
_EXPERTS = ExpertNames(
    router="block_sparse_moe.gate",
    correction_bias="block_sparse_moe.gate.e_score_correction_bias",
    experts="block_sparse_moe.experts",
    each=MlpNames("w1", "w3", "w2"),
    shared="block_sparse_moe.shared_experts",
)


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    fields = with_dense_layers(_renamed(fields).with_defaults(**_DEFAULTS))
    fields.refuse("mla_use_nope", True)
    fields.refuse("moe_router_activation_func", "sigmoid")
    attention_of = read_latent_attention(fields, pairs=False, rotated=False)
    common = read_common(fields, kv_heads=1, head_dim=fields.integer("v_head_dim", 1, MAX_DIM))
    delta_of, are_linear = _read_delta(common), _read_kinds(fields, common.layers)
    mlp_of = read_deepseek_experts(
        common,
        correction_bias=True,
        names=_EXPERTS,
        scoring="sigmoid",
        renormalize=fields.flag("norm_topk_prob", True),
        group_score="top2",
        **read_groups(fields),
    )

    def block(layer: int) -> Block:
        mixer = delta_of(layer) if are_linear[layer] else attention_of(layer, common)
        return common.block(layer, mixer, mlp_of(layer))

    return common.model("kimi_linear", architecture, block)


def _renamed(fields: Fields) -> Fields:
    """Return the fields under the names of DeepSeek-V3, and the fields of `linear_attn_config` in addition."""
    linear = fields.child("linear_attn_config")
    found: dict[str, object] = {_LINEAR_NAMES[key]: linear.values[key] for key in _LINEAR_NAMES if linear.has(key)}
    found |= {name: fields.values[key] for key, name in _NAMES.items() if fields.has(key)}
    if linear.has("kda_layers") and not fields.has("layer_types"):
        layers = read_layer_count(fields)
        listed = linear.integers("kda_layers", 1, layers)  # the first layer is 1
        found["layer_types"] = [_LINEAR if layer in listed else "full_attention" for layer in range(1, layers + 1)]
    return fields.with_values(**found)


def _read_kinds(fields: Fields, layers: int) -> list[bool]:
    """Return whether each layer has Kimi Delta Attention."""
    are_linear = read_layer_kinds(fields, [layer % 4 > 0 or not layer for layer in range(layers)], name=_LINEAR)
    if all(are_linear):
        raise fields.error(f"all {layers} layers are of kind {_LINEAR}; at least one must be of kind full_attention")
    return are_linear


def _read_delta(common: Common) -> Callable[[int], KimiDelta]:
    """Return the function that makes the delta rule of a layer."""
    fields = common.fields
    heads = fields.integer("linear_num_heads", 1, _MAX_HEADS)
    dim = fields.integer("linear_head_dim", 1, MAX_KEY_DIM)
    taps = fields.integer("linear_conv_kernel_dim", 2, MAX_CONV_TAPS)

    def delta(layer: int) -> KimiDelta:
        return KimiDelta(f"layers.{layer}.", common.hidden, heads, dim, taps, common.eps)

    return delta


def _gguf_values(metadata: Fields, values: Values) -> Values:
    """Return the fields of a GGUF file, whose layers with the delta rule have no KV heads."""
    name = metadata.text("general.architecture")
    metadata.refuse(f"{name}.expert_gating_func", 0, SIGMOID)
    found: dict[str, Any] = heads_values(metadata, _LINEAR) | latent_values(metadata, values)
    return found | {
        "norm_topk_prob": True,
        "linear_num_heads": metadata.values.get(f"{name}.attention.head_count"),
        "linear_head_dim": metadata.values.get(f"{name}.kda.head_dim"),
        "linear_conv_kernel_dim": metadata.values.get(f"{name}.ssm.conv_kernel"),
    }


FAMILY = Family(
    name="kimi_linear",
    architectures=("KimiLinearForCausalLM",),
    configure=configure,
    gguf=GgufForm("kimi-linear", values=_gguf_values, equal_value_length=False),
)
