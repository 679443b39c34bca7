"""MiMo-V2-Flash: values narrower than keys, sliding layers with sinks and more KV heads, experts in all layers but the
first."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.models.config import gguf_deepseek
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_heads import KV_HEADS, of_layers
from numaserve.workers.models.config.huggingface import (
    Common,
    read_biases,
    read_common,
    read_layer_count,
    read_layer_kinds,
    read_sliding_window,
)
from numaserve.workers.models.config.latent import (
    read_deepseek_experts,
    read_groups,
    read_skipped,
    with_dense_layers,
)
from numaserve.workers.models.config.rope import MAX_POSITION, read_ropes
from numaserve.workers.models.family import Family, GgufForm, Values
from numaserve.workers.models.spec import ModelConfig

_ARCHITECTURE = "mimo2"
_MAX_VALUE_DIM = 2**9
_FULL_EVERY = 6  # layers
_SINKS = "self_attn.attention_sink_bias"
# Layers for multi-token prediction (MTP). No layer is declared under this name: it shows whether a checkpoint has them.
_MTP, _MTP_LAYERS = "model.mtp.", 3  # published files do not state the number
_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "attention_value_scale": 0.707,
    "rms_norm_eps": 1e-5,
    "num_nextn_predict_layers": _MTP_LAYERS,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json, as it was published or as transformers saves it; what it leaves out has transformers'
    default."""
    fields = with_dense_layers(_renamed(fields.with_defaults(**_DEFAULTS)))
    _refuse_variants(fields)
    full = read_common(fields)
    sliding = replace(full, kv_heads=_read_sliding_heads(full))
    window, slides = read_sliding_window(fields, default=129), _read_slides(fields)
    ropes = _read_ropes(full)
    experts_of = read_deepseek_experts(
        full,
        correction_bias=True,
        scoring="sigmoid",
        renormalize=fields.flag("norm_topk_prob", True),
        group_score="top2",
        **read_groups(fields),
    )
    value_dim = fields.integer("v_head_dim", 1, _MAX_VALUE_DIM)
    attention: dict[str, Any] = {
        "value_dim": value_dim,
        "value_scale": fields.optional_number("attention_value_scale", 1e-6, 1e6) or 1.0,
        "biases": read_biases(fields, of="qkv"),
    }

    def block(layer: int) -> Block:
        slide = slides[layer]
        common = sliding if slide else full
        mask = Mask(window, sinks=common.sinks(layer, _SINKS, value_dim=value_dim)) if slide else Mask()
        mixer = common.attention(layer, rotation=ropes[slide], mask=mask, **attention)
        return common.block(layer, mixer, experts_of(layer))

    model = full.model("mimo_v2_flash", architecture, block, aliases=(("mtp.", _MTP),), ignored_prefixes=(_MTP,))
    return replace(model, skipped_layers=read_skipped(fields))


def _renamed(fields: Fields) -> Fields:
    """Return the fields under transformers' names, for those that were published under others."""
    changes: dict[str, object] = {"routed_scaling_factor": fields.values.get("routed_scaling_factor") or 1.0}
    if fields.has("layernorm_epsilon"):
        changes["rms_norm_eps"] = fields.values["layernorm_epsilon"]
    if fields.has("sliding_window_size"):
        # The model was trained to see this number of tokens, and the current one.
        changes["sliding_window"] = fields.integer("sliding_window_size", 1, MAX_POSITION) + 1
    kinds = (
        ("hybrid_layer_pattern", "layer_types", ("full_attention", "sliding_attention")),
        ("moe_layer_freq", "mlp_layer_types", ("dense", "sparse")),
    )
    for key, name, texts in kinds:
        if fields.has(key):
            changes[name] = [texts[each] for each in fields.integers(key, 0, 1)]
    # Published files state a length of chunks too, which no layer uses.
    return fields.with_values(**changes, moe_layer_freq=None, attention_chunk_size=None)


def _refuse_variants(fields: Fields) -> None:
    """Refuse what no published model has."""
    fields.refuse("scoring_func", "sigmoid")
    fields.refuse("topk_method", "noaux_tc")
    fields.refuse("n_shared_experts", 0)
    fields.refuse("add_full_attention_sink_bias", False)
    fields.refuse("add_swa_attention_sink_bias", True)
    for key in ("num_attention_heads", "head_dim", "v_head_dim"):
        fields.refuse(f"swa_{key}", fields.values.get(key))


def _read_sliding_heads(full: Common) -> int:
    """Return the number of KV heads of layers that slide."""
    fields = full.fields
    kv_heads = fields.integer("swa_num_key_value_heads", 1, full.heads, min(2 * full.kv_heads, full.heads))
    if full.heads % kv_heads:
        raise fields.error(f"swa_num_key_value_heads={kv_heads} must divide num_attention_heads={full.heads}")
    return kv_heads


def _read_slides(fields: Fields) -> Sequence[bool]:
    """Return whether each layer slides."""
    layers = read_layer_count(fields)
    return read_layer_kinds(fields, [layer > 0 and (layer + 1) % _FULL_EVERY != 0 for layer in range(layers)])


def _read_ropes(full: Common) -> Sequence[Rotation]:
    """Return the rotation of layers that see all tokens, and that of layers that slide."""
    fields = full.fields
    ropes = read_ropes(
        fields,
        full.head_dim,
        full_theta=fields.number("rope_theta", 1.0, 1e12, 5e6),
        sliding_theta=fields.number("swa_rope_theta", 1.0, 1e12, 1e4),
        partial=fields.number("partial_rotary_factor", 0.0, 1.0, 0.334),
    )
    return [Rotation(rope) for rope in ropes]


def _gguf_values(metadata: Fields, values: Values) -> Values:
    """Return the fields of a GGUF file. llama.cpp always divides the experts' weights by their sum."""
    metadata.refuse(f"{_ARCHITECTURE}.expert_gating_func", 0, gguf_deepseek.SIGMOID)  # 0: llama.cpp takes sigmoid
    experts = gguf_deepseek.expert_values(metadata, _ARCHITECTURE)
    heads = of_layers(metadata, KV_HEADS)
    kinds = values.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != len(heads):
        raise metadata.error(f"{_ARCHITECTURE}.attention.sliding_window_pattern must have a value for each layer")
    of_kind = dict(zip(kinds, heads, strict=True))
    if any(of_kind[kind] != count for kind, count in zip(kinds, heads, strict=True)):
        raise metadata.error(
            f"{_ARCHITECTURE}.{KV_HEADS} must have one number for layers that slide, and one for the others"
        )
    # The lists have values for the layers that predict too, which follow the others.
    layers = len(heads) - metadata.integer(f"{_ARCHITECTURE}.nextn_predict_layers", 0, len(heads), 0)
    return {
        **experts,
        **{key: found[:layers] for key in ("layer_types", "mlp_layer_types") if isinstance(found := values[key], list)},
        "norm_topk_prob": True,
        "num_key_value_heads": of_kind.get("full_attention"),
        "swa_num_key_value_heads": of_kind.get("sliding_attention"),
        "sliding_window_size": values.get("sliding_window"),
        "swa_rope_theta": values.get("rope_local_base_freq", values.get("rope_theta")),
        "v_head_dim": metadata.values.get(f"{_ARCHITECTURE}.attention.value_length"),
        "attention_value_scale": metadata.values.get(f"{_ARCHITECTURE}.attention.value_scale"),
    }


FAMILY = Family(
    name="mimo_v2_flash",
    architectures=("MiMoV2FlashForCausalLM",),
    configure=configure,
    gguf=GgufForm(_ARCHITECTURE, values=_gguf_values, equal_value_length=False),
)
