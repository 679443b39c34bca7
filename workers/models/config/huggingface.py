"""What every family reads from config.json in the same way."""

from __future__ import annotations

from typing import Any

from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.rope import MAX_POSITION, read_rope
from numaserve.workers.models.spec import Activation, LayerKind, ModelConfig

# Far above any published model, far below what would overflow an index or exhaust memory while planning.
_MAX_HIDDEN = 2**17
MAX_LAYERS = 2**10
_MAX_HEADS = 2**10
_MAX_HEAD_DIM = 512
MAX_INTERMEDIATE = 2**20
_MAX_VOCAB = 2**22

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
_LAYER_KINDS: dict[str, LayerKind] = {"full_attention": "full", "sliding_attention": "sliding"}


def read_common(fields: Fields, family: str, architecture: str, **overrides: Any) -> ModelConfig:
    """A `ModelConfig` from the fields that all families spell alike; `overrides` replace single fields of it.

    Raises `OperatorError` for a missing field, a value out of range and for features that no family has.
    """
    _refuse_unsupported(fields)
    hidden = fields.integer("hidden_size", 1, _MAX_HIDDEN)
    heads = fields.integer("num_attention_heads", 1, _MAX_HEADS)
    kv_heads = fields.integer("num_key_value_heads", 1, _MAX_HEADS, heads)
    if heads % kv_heads:
        raise fields.error(f"num_attention_heads={heads} must be a multiple of num_key_value_heads={kv_heads}")
    head_dim = read_head_dim(fields)
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    vocab_size = fields.integer("vocab_size", 1, _MAX_VOCAB)
    values: dict[str, Any] = {
        "architecture": architecture,
        "family": family,
        "hidden_size": hidden,
        "num_layers": layers,
        "num_qo_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": fields.integer("intermediate_size", 1, MAX_INTERMEDIATE),
        "vocab_size": vocab_size,
        "rms_norm_eps": fields.number("rms_norm_eps", 1e-12, 1.0, 1e-6),
        "max_position": fields.integer("max_position_embeddings", 1, MAX_POSITION),
        "tie_word_embeddings": fields.flag("tie_word_embeddings", False),
        "query_scale": head_dim**-0.5,
        "layer_kinds": ("full",) * layers,
        "eos_token_ids": fields.token_ids("eos_token_id", vocab_size),
        "bos_token_id": next(iter(fields.token_ids("bos_token_id", vocab_size)), None),
    }
    # Not read where a family has its own spelling: the generic reading could refuse what that family allows.
    if "activation" not in overrides:
        values["activation"] = fields.choice("hidden_act", _ACTIVATIONS, "silu")
    if "rope" not in overrides:
        values["rope"] = read_rope(fields, head_dim)
    return ModelConfig(**values | overrides)


def read_head_dim(fields: Fields) -> int:
    """The width of a head: `head_dim`, or an equal part of the hidden size."""
    heads = fields.integer("num_attention_heads", 1, _MAX_HEADS)
    hidden = fields.integer("hidden_size", 1, _MAX_HIDDEN)
    if not fields.has("head_dim") and hidden % heads:
        raise fields.error(f"head_dim is missing and hidden_size={hidden} is not a multiple of {heads} heads")
    return fields.integer("head_dim", 2, _MAX_HEAD_DIM, hidden // heads)


def read_sliding_window(fields: Fields, default: int | None = None) -> int | None:
    """`sliding_window`, `default` where it is missing; None where it is null or covers the longest context."""
    if "sliding_window" in fields.values:
        default = None
    window = fields.optional_integer("sliding_window", 1, MAX_POSITION) or default
    # transformers allows the difference q - k < window: a window as long as the context hides nothing.
    longest = fields.integer("max_position_embeddings", 1, MAX_POSITION)
    return None if window is None or window >= longest else window


def read_layer_kinds(fields: Fields, default: tuple[LayerKind, ...]) -> tuple[LayerKind, ...]:
    """`layer_types`, one for each layer, or `default` where it is missing."""
    if not fields.has("layer_types"):
        return default
    kinds = fields.texts("layer_types", len(default))
    unknown = sorted(set(kinds) - set(_LAYER_KINDS))
    if unknown:
        raise fields.error(f"layer_types holds {unknown[0]!r}; supported are: {', '.join(_LAYER_KINDS)}")
    return tuple(_LAYER_KINDS[kind] for kind in kinds)


def read_activation(fields: Fields, key: str, default: str) -> Activation:
    """The MLP's activation from field `key`."""
    return fields.choice(key, _ACTIVATIONS, default)


def read_layer_count(fields: Fields) -> int:
    """The number of layers."""
    return fields.integer("num_hidden_layers", 1, MAX_LAYERS)


def _refuse_unsupported(fields: Fields) -> None:
    fields.refuse("mlp_bias", False)
    fields.refuse("use_bidirectional_attention", False)
    fields.refuse("attention_chunk_size")
    fields.refuse("is_encoder_decoder", False)
