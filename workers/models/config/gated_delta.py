"""Fields that all models with gated delta networks and gated attention read in the same way."""

from collections.abc import Callable
from typing import Any

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.layer import FeedForward
from numaserve.workers.layers.mixers.gated_attention import GatedAttention
from numaserve.workers.layers.mixers.gated_delta import GatedDelta, GatedDeltaNames
from numaserve.workers.layers.names import Aliases
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.grid_vision import seeing
from numaserve.workers.models.config.huggingface import (
    MAX_LAYERS,
    MULTIMODAL,
    Common,
    read_biases,
    read_common,
    read_layer_kinds,
    read_text,
)
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.caches import MAX_CONV_TAPS, MAX_KEY_DIM

_MAX_HEADS = 2**10
_DEFAULTS = {
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_SECTIONS = 11, 11, 10  # pairs that are rotated by each coordinate
_PREDICTOR = "mtp."
# The tensors of the layer for multi-token prediction (MTP), by the names that other checkpoints have for them.
_PREDICTOR_NAMES = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "shared_head.norm": "norm",
    "": "layers.0.",
}


def read_hybrid(
    common: Common,
    family: str,
    architecture: str,
    mlp_of: Callable[[int], FeedForward],
    *,
    names: GatedDeltaNames,
    predictors: int = 0,
    **changes: Any,
) -> ModelConfig:
    """Return a model of layers with gated delta networks and of layers with gated attention.

    `predictors` is the default for the number of layers for multi-token prediction (MTP), `changes` are fields of the
    model. Raises `OperatorError` for mixes of layers that no family has.
    """
    fields = common.fields
    are_linear, delta = _read_linear(common), _read_delta(common, names)
    biases = read_biases(fields)

    def block(layer: int) -> Block:
        at = f"layers.{layer}."
        is_linear = layer < common.layers and are_linear[layer]
        attention = common.attention(layer, GatedAttention, norms=common.head_norms(layer), biases=biases)
        # GGUF files call this norm one after attention.
        mlp_norm = common.norm(f"{at}post_attention_layernorm", f"{at}post_attention_norm")
        return common.block(layer, delta(at) if is_linear else attention, mlp_of(layer), mlp_norm=mlp_norm)

    ignored = changes.pop("ignored_prefixes", ())
    return common.model(
        family,
        architecture,
        block,
        skipped_layers=fields.integer("mtp_num_hidden_layers", 0, 2**8, predictors),
        aliases=_predictor_names(common.layers),
        ignored_prefixes=(*ignored, _PREDICTOR),
        **changes,
    )


def read_hybrid_common(fields: Fields) -> Common:
    """Return the common fields. Raises `OperatorError` for features that no family has."""
    fields = fields.with_defaults(**_DEFAULTS)
    fields.refuse("hidden_act", "silu", "swish")
    fields.refuse("output_gate_type", "silu", "swish")  # of the gated norm, despite its name
    fields.refuse("attn_output_gate", True)
    fields.refuse("mtp_use_dedicated_embeddings", False)
    return read_common(fields, plus_one=True)


def read_multimodal(fields: Fields) -> Fields:
    """Return the fields of the text model. Unlike other classes of transformers, this one does not tie the head by
    default."""
    return read_text(fields, tied=False) if fields.has("text_config") else fields


def multimodal() -> dict[str, Any]:
    """Return the fields of `ModelConfig` for checkpoints of which the text is served."""
    return MULTIMODAL | {"ignored_prefixes": (*MULTIMODAL["ignored_prefixes"], "model.visual.")}


def seeing_hybrid(config: ModelConfig, fields: Fields, text: Fields) -> ModelConfig:
    """Return the model with the tower of its whole config.json, `fields`, if this has one."""
    return seeing(config, fields, text, _SECTIONS) if fields.has("vision_config") else config


def hybrid_values(metadata: Fields) -> dict[str, object]:
    """Return the fields of config.json for a GGUF file."""
    name = metadata.text("general.architecture")
    layers = metadata.integer(f"{name}.block_count", 1, MAX_LAYERS)
    skipped = metadata.integer(f"{name}.nextn_predict_layers", 0, layers - 1, 0)
    heads = metadata.integer(f"{name}.ssm.time_step_rank", 1, _MAX_HEADS)
    inner = metadata.integer(f"{name}.ssm.inner_size", 1, _MAX_HEADS * MAX_KEY_DIM)
    if inner % heads:
        raise metadata.error(f"{name}.ssm.inner_size={inner} must be a multiple of {name}.ssm.time_step_rank={heads}")
    found: dict[str, object] = {
        "num_hidden_layers": layers - skipped,
        "mtp_num_hidden_layers": skipped,
        "full_attention_interval": metadata.integer(f"{name}.full_attention_interval", 1, MAX_LAYERS, 4),
        "linear_conv_kernel_dim": metadata.values.get(f"{name}.ssm.conv_kernel"),
        "linear_key_head_dim": metadata.values.get(f"{name}.ssm.state_size"),
        "linear_value_head_dim": inner // heads,
        "linear_num_key_heads": metadata.values.get(f"{name}.ssm.group_count"),
        "linear_num_value_heads": heads,
    }
    recurrent = metadata.values.get(f"{name}.attention.recurrent_layers")
    if isinstance(recurrent, list):
        kinds = ["linear_attention" if each else "full_attention" for each in recurrent]
        found["layer_types"] = kinds[: layers - skipped]
    return found


def _read_linear(common: Common) -> list[bool]:
    """Return whether each layer has a gated delta network: `layer_types`, or all but every n-th layer."""
    interval = common.fields.integer("full_attention_interval", 1, MAX_LAYERS)
    default = [bool((layer + 1) % interval) for layer in range(common.layers)]
    are_linear = read_layer_kinds(common.fields, default, name="linear_attention")
    if len(set(are_linear)) < 2:
        kind = "linear_attention" if are_linear[0] else "full_attention"
        raise common.fields.error(
            f"all {common.layers} layers are of kind {kind}; a model of this family has layers of kind "
            "linear_attention and of kind full_attention"
        )
    return are_linear


def _read_delta(common: Common, names: GatedDeltaNames) -> Callable[[str], GatedDelta]:
    """Return the function that makes the gated delta network of a layer."""
    fields = common.fields
    key_heads = fields.integer("linear_num_key_heads", 1, _MAX_HEADS)
    value_heads = fields.integer("linear_num_value_heads", 1, _MAX_HEADS)
    if value_heads % key_heads:
        raise fields.error(
            f"linear_num_value_heads={value_heads} must be a multiple of linear_num_key_heads={key_heads}"
        )
    key_dim = fields.integer("linear_key_head_dim", 1, MAX_KEY_DIM)
    value_dim = fields.integer("linear_value_head_dim", 1, MAX_KEY_DIM)
    taps = fields.integer("linear_conv_kernel_dim", 2, MAX_CONV_TAPS)

    def delta(at: str) -> GatedDelta:
        return GatedDelta(at, common.hidden, key_heads, value_heads, key_dim, value_dim, taps, common.eps, names)

    return delta


def _predictor_names(layers: int) -> Aliases:
    return tuple((f"layers.{layers}.{name}", _PREDICTOR + saved) for name, saved in _PREDICTOR_NAMES.items())
