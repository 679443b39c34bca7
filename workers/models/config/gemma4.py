"""Fields of Gemma 4 that state which layers slide, share keys and values, or are wider than others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_heads import KV_HEADS, of_layers
from numaserve.workers.models.config.huggingface import (
    MAX_LAYERS,
    Common,
    read_layer_count,
    read_layer_kinds,
    read_sliding_window,
)
from numaserve.workers.program.ops.attention import KvSource

_MAX_HEADS, _MAX_HEAD_DIM = 2**10, 2**9
_FULL_EVERY = 6  # layers
_COMMON: dict[str, Any] = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25}},
}
DEFAULTS = _COMMON | {
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
}
UNIFIED_DEFAULTS = _COMMON | {
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
    "use_bidirectional_attention": "vision",
}


@dataclass(frozen=True)
class Geometry:
    """The differences between layers: `full` has the heads of layers that see all tokens."""

    full: Common
    window: int | None
    slides: Sequence[bool]
    sources: Sequence[KvSource]  # of keys and values
    shared_intermediate: int  # of layers without keys and values of their own

    def intermediate(self, layer: int) -> int:
        """The columns of a layer's MLP."""
        return self.shared_intermediate if self.sources[layer] == "cached" else self.full.intermediate


def read_geometry(common: Common) -> Geometry:
    """Return the differences between layers. The last `num_kv_shared_layers` layers have the keys and values of the
    last layer before them that is of the same kind."""
    fields, layers = common.fields, common.layers
    slides = _read_slides(fields)
    shared = fields.integer("num_kv_shared_layers", 0, layers, 0)
    first = layers - shared
    if set(slides[first:]) - set(slides[:first]):
        raise fields.error(
            f"num_kv_shared_layers={shared}: no layer before these has keys and values of the same kind of attention"
        )
    values_are_keys = fields.flag("attention_k_eq_v", False)
    full = _read_full(common, slides, values_are_keys)
    of_full: KvSource = "keys" if values_are_keys else "projected"
    sources: list[KvSource] = ["projected" if each else of_full for each in slides[:first]] + ["cached"] * shared
    width = common.intermediate * (2 if fields.flag("use_double_wide_mlp", False) else 1)
    return Geometry(full, read_sliding_window(fields), slides, sources, width)


def read_readers(common: Common) -> Geometry:
    """Return the differences between layers that all read the keys and values of another model."""
    slides = _read_slides(common.fields)
    full = _read_full(common, slides, values_are_keys=False)
    return Geometry(full, read_sliding_window(common.fields), slides, ["cached"] * common.layers, common.intermediate)


def read_unused(geometry: Geometry, prefixes: Sequence[str]) -> Iterator[str]:
    """Return the beginnings of names of keys and values of layers that do without: published checkpoints have them."""
    for layer in (layer for layer, source in enumerate(geometry.sources) if source == "cached"):
        yield from (f"{prefix}layers.{layer}.self_attn.{each}" for prefix in prefixes for each in ("k_", "v_"))
        yield from (f"blk.{layer}.{each}" for each in ("attn_k", "attn_v"))


def gguf_values(metadata: Fields, values: Mapping[str, object]) -> Mapping[str, object]:
    """Return the fields of a GGUF file. Lists have a value for each layer."""
    head_dim = metadata.integer("gemma4.attention.key_length_swa", 2, _MAX_HEAD_DIM)
    metadata.refuse("gemma4.attention.value_length_swa", head_dim)
    metadata.refuse("gemma4.rope.dimension_count_swa", head_dim)
    widths, kv_heads = (of_layers(metadata, key, low=1) for key in ("feed_forward_length", KV_HEADS))
    if any(width not in (widths[0], widths[-1]) for width in widths) or widths[-1] not in (widths[0], 2 * widths[0]):
        raise metadata.error("gemma4.feed_forward_length must have one value, or twice that for the last layers")
    experts = metadata.integer("gemma4.expert_count", 0, 2**10, 0)
    return {
        **values,
        "global_head_dim": values.get("head_dim"),
        "head_dim": head_dim,
        "num_key_value_heads": kv_heads[0],
        "num_global_key_value_heads": kv_heads[-1],
        "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] != widths[0],
        "num_kv_shared_layers": metadata.integer("gemma4.attention.shared_kv_layers", 0, MAX_LAYERS, 0),
        "hidden_size_per_layer_input": metadata.integer("gemma4.embedding_length_per_layer_input", 0, 2**12, 0),
        "enable_moe_block": experts > 0,
        "num_experts": experts,
        "top_k_experts": metadata.values.get("gemma4.expert_used_count"),
        "moe_intermediate_size": metadata.values.get("gemma4.expert_feed_forward_length"),
    }


def _read_slides(fields: Fields) -> list[bool]:
    """Return whether each layer slides. The last layer sees all tokens, whatever its type."""
    layers = read_layer_count(fields)
    slides = read_layer_kinds(fields, [(layer + 1) % _FULL_EVERY != 0 for layer in range(layers)])
    return [*slides[:-1], False]


def _read_full(common: Common, slides: Sequence[bool], values_are_keys: bool) -> Common:
    """Return the heads of layers that see all tokens. Files that transformers 5 saves state them by layer."""
    fields = common.fields
    by_layer = fields.child("per_layer_config")
    heads = fields.with_values(head_dim=fields.values.get("global_head_dim"), num_key_value_heads=None)
    if values_are_keys:
        heads = heads.with_values(num_key_value_heads=fields.values.get("num_global_key_value_heads"))
    if fields.has("per_layer_config"):
        # transformers fills up the numbers with zeros to equal length.
        numbers = {key.lstrip("0") or "0": each for key, each in by_layer.values.items()}
        by_number = Fields(numbers, by_layer.where)
        of_layers = [by_number.child(str(layer)).values for layer in range(min(len(slides), MAX_LAYERS))]
        # A layer that is like the others has no entry.
        if any(each != ({} if slide else of_layers[-1]) for each, slide in zip(of_layers, slides, strict=True)):
            raise fields.error(
                "per_layer_config must state the same heads for each full_attention layer, and no others"
            )
        heads = Fields({"head_dim": common.head_dim, **of_layers[-1]}, by_layer.where)
    kv_heads = heads.integer("num_key_value_heads", 1, _MAX_HEADS, common.kv_heads)
    if common.heads % kv_heads:
        raise fields.error(f"{kv_heads} key and value heads must divide num_attention_heads={common.heads}")
    return replace(common, head_dim=heads.integer("head_dim", 2, _MAX_HEAD_DIM, 512), kv_heads=kv_heads)
