"""Nemotron-H, and Nemotron 3 Nano: Mamba-2, attention without rope, MLPs and experts without gates, one to a layer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.experts import ExpertNames, Experts
from numaserve.workers.layers.layer import FeedForward, Mixer
from numaserve.workers.layers.mixers.attention import AttentionNames
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames, PlainMlp
from numaserve.workers.layers.norm import Norm
from numaserve.workers.models.config.experts import read_experts
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_deepseek import SIGMOID
from numaserve.workers.models.config.gguf_experts import has_experts
from numaserve.workers.models.config.gguf_heads import KV_HEADS, of_layers
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE, MAX_LAYERS, Common, read_common
from numaserve.workers.models.config.latent import read_groups
from numaserve.workers.models.config.mamba2 import SpaceKeys, mamba2_values, read_mamba2
from numaserve.workers.models.family import Family, GgufForm, Values
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.experts import Routing
from numaserve.workers.program.rope import UNROTATED

Kind = Literal["space", "attention", "mlp", "experts"]

_DEFAULTS = {
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 21504,
    "layer_norm_epsilon": 1e-5,
    "mlp_hidden_act": "relu2",
    "ssm_state_size": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "conv_kernel": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
}
_LETTERS: dict[str, Kind] = {"M": "space", "*": "attention", "-": "mlp", "E": "experts"}
_KINDS: dict[str, Kind] = {
    "mamba": "space",
    "linear_attention": "space",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
    "moe": "experts",
}
_KEYS = SpaceKeys(
    module="mixer",
    heads="mamba_num_heads",
    groups="n_groups",
    state_dim="ssm_state_size",
    head_dim="mamba_head_dim",
    taps="conv_kernel",
    bias="use_conv_bias",
    other_biases=("use_bias", "mamba_proj_bias"),
)
# GGUF's key after the architecture's name to config.json's.
_GGUF_KEYS = {
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "moe_latent_size": "moe_latent_size",
}
_ATTENTION = AttentionNames(*(f"mixer.{each}_proj" for each in "qkvo"))
_MLP = MlpNames("", "mixer.up_proj", "mixer.down_proj")
_EXPERTS = ExpertNames(
    router="mixer.gate",
    correction_bias="mixer.gate.e_score_correction_bias",
    experts="mixer.experts",
    shared="mixer.shared_experts",
)


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default. A layer is a mixer, or what a block has after
    it."""
    fields = fields.with_defaults(**_DEFAULTS)
    for key, value in (("mlp_hidden_act", "relu2"), ("mamba_hidden_act", "silu"), ("attention_bias", False)):
        fields.refuse(key, value)
    fields.refuse("moe_latent_size")
    kinds = _read_kinds(fields)
    common = read_common(
        fields.with_values(rms_norm_eps=fields.values["layer_norm_epsilon"], num_hidden_layers=len(kinds))
    )
    mixer_of, mlp_of = _read_mixers(common, kinds), _read_mlps(common, kinds)
    firsts = _blocks(common.fields, kinds)

    def block(index: int) -> Block:
        layer = firsts[index]
        has_mlp = layer + 1 < len(kinds) and kinds[layer + 1] in ("mlp", "experts")
        return Block(
            input_norm=_norm(common, layer),
            attention=mixer_of(layer),
            mlp_norm=_norm(common, layer + 1) if has_mlp else None,
            mlp=mlp_of(layer + 1) if has_mlp else None,
        )

    return replace(common, layers=len(firsts)).model(
        "nemotron_h",
        architecture,
        block,
        norm=common.norm("norm_f", "output_norm"),
        prefixes=("backbone.",),
        aliases=(("embed_tokens", "backbone.embeddings"),),
        ignored_prefixes=("mtp.",),
    )


def _norm(common: Common, layer: int) -> Norm:
    at = f"layers.{layer}."
    return common.norm(f"{at}norm", f"{at}attn_norm")


def _read_kinds(fields: Fields) -> list[Kind]:
    """Return the kind of each layer: a letter of `hybrid_override_pattern`, or an item of `layers_block_type`."""
    if fields.has("hybrid_override_pattern"):
        key, listed, names = "hybrid_override_pattern", [*fields.text("hybrid_override_pattern")], _LETTERS
    else:
        key, names = "layers_block_type", _KINDS
        value = fields.values.get(key)
        listed = fields.texts(key, len(value) if isinstance(value, list) else 0)
    if not 0 < len(listed) <= MAX_LAYERS:
        raise fields.error(f"{key} must have from 1 to {MAX_LAYERS} layers, not {len(listed)}")
    kinds = [Fields({key: each}, fields.where).choice(key, names) for each in listed]
    if "attention" not in kinds:
        raise fields.error(f"{key} holds no layer with attention; at least one is needed")
    return kinds


def _blocks(fields: Fields, kinds: Sequence[Kind]) -> list[int]:
    """Return the first layer of each block: a mixer, which an MLP or experts may follow."""
    firsts = [layer for layer, kind in enumerate(kinds) if kind in ("space", "attention")]
    alone = [layer for layer in range(len(kinds)) if layer not in firsts and layer - 1 not in firsts]
    if alone:
        raise fields.error(f"layer {alone[0]} is an MLP, and must follow a layer with Mamba or attention")
    return firsts


def _read_mixers(common: Common, kinds: Sequence[Kind]) -> Callable[[int], Mixer]:
    """Return the function that makes the state space or the attention of a layer."""
    space_of = read_mamba2(common, _KEYS) if "space" in kinds else None

    def mixer(layer: int) -> Mixer:
        if space_of is not None and kinds[layer] == "space":
            return space_of(layer)
        return common.attention(layer, rotation=Rotation(UNROTATED), names=_ATTENTION)

    return mixer


def _read_mlps(common: Common, kinds: Sequence[Kind]) -> Callable[[int], FeedForward]:
    """Return the function that makes the MLP or the experts of a layer."""
    routing = _read_routing(common.fields) if "experts" in kinds else None
    width, shared = (
        common.fields.integer(key, 1, MAX_INTERMEDIATE)
        for key in ("moe_intermediate_size", "moe_shared_expert_intermediate_size")
    )

    def mlp(layer: int) -> FeedForward:
        at = f"layers.{layer}."
        if routing is None or kinds[layer] == "mlp":
            return PlainMlp(at, common.hidden, common.intermediate, names=_MLP)
        return Experts(
            at, common.hidden, routing, width, shared, activation="relu2", correction_bias=True, names=_EXPERTS
        )

    return mlp


def _read_routing(fields: Fields) -> Routing:
    num_experts, top_k = read_experts(fields, "n_routed_experts")
    return Routing(
        num_experts=num_experts,
        top_k=top_k,
        scoring="sigmoid",
        renormalize=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 1e-6, 1e6),
        group_score="top2",
        **read_groups(fields),
    )


def _gguf_values(metadata: Fields, values: Values) -> Values:
    """Return the fields of a GGUF file, whose layers have KV heads, or columns of an MLP, or a state space."""
    name = metadata.text("general.architecture")
    metadata.refuse(f"{name}.nextn_predict_layers", 0)
    metadata.refuse(f"{name}.expert_gating_func", 0, SIGMOID)  # 0: llama.cpp takes sigmoid
    kv_heads, widths = (of_layers(metadata, key) for key in (KV_HEADS, "feed_forward_length"))
    mlp = "moe" if has_experts(metadata) else "mlp"
    kinds = zip(kv_heads, widths, strict=True)
    found = {key: metadata.values.get(f"{name}.{gguf}") for gguf, key in _GGUF_KEYS.items()}
    return {
        **{key: value for key, value in found.items() if value is not None},
        **mamba2_values(metadata, _KEYS),
        "layers_block_type": ["attention" if heads else mlp if width else "mamba" for heads, width in kinds],
        "num_key_value_heads": max(kv_heads),
        "intermediate_size": max(widths),
        "layer_norm_epsilon": values.get("rms_norm_eps"),
    }


FAMILY = Family(
    name="nemotron_h",
    architectures=("NemotronHForCausalLM",),
    configure=configure,
    gguf=GgufForm("nemotron_h", values=_gguf_values, others=("nemotron_h_moe",)),
)
