"""Fields of config.json that all families with multi-head latent attention read in the same way."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.experts import ExpertNames, Experts
from numaserve.workers.layers.layer import FeedForward
from numaserve.workers.layers.mixers.latent_attention import LatentAttention
from numaserve.workers.models.config.experts import read_experts
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE, Common, read_common, read_layer_count
from numaserve.workers.models.config.rope import read_rope
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.experts import Routing
from numaserve.workers.program.rope import UNROTATED, RopeConfig

_TILE = 32
_MAX_LATENT, _MAX_CACHED = 512, 576  # the maxima that the kernels support
MAX_DIM = 2**12
_DENSE, _SPARSE = "dense", "sparse"

# transformers' defaults of fields missing in config.json, in both generations.
LATENT_DEFAULTS: dict[str, Any] = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
EXPERT_NAMES = ExpertNames(shared="mlp.shared_experts")


def read_deepseek(
    fields: Fields,
    family: str,
    architecture: str,
    *,
    correction_bias: bool = False,
    pairs: bool = True,
    names: ExpertNames = EXPERT_NAMES,
    **routing: Any,
) -> ModelConfig:
    """Return the configuration of a model of either generation; `routing` are fields of `Routing`."""
    attention_of = read_latent_attention(fields, pairs=pairs)
    common = read_common(fields, kv_heads=1, head_dim=fields.integer("v_head_dim", 1, MAX_DIM))
    mlp_of = read_deepseek_experts(common, correction_bias=correction_bias, names=names, **routing)

    def block(layer: int) -> Block:
        return common.block(layer, attention_of(layer, common), mlp_of(layer))

    return common.model(family, architecture, block, skipped_layers=read_skipped(fields))


def read_deepseek_experts(
    common: Common, *, correction_bias: bool, names: ExpertNames = EXPERT_NAMES, **routing: Any
) -> Callable[[int], FeedForward]:
    """Return the function that makes the MLP of a layer, dense in the first layers; `routing` are fields of
    `Routing`."""
    fields = common.fields
    num_experts, top_k = read_experts(fields, "n_routed_experts")
    fields.refuse("moe_layer_freq", 1)
    width = fields.integer("moe_intermediate_size", 1, MAX_INTERMEDIATE)
    dense = fields.integer("first_k_dense_replace", 0, common.layers)
    scale = fields.number("routed_scaling_factor", 1e-6, 1e6)
    shared = width * (fields.optional_integer("n_shared_experts", 0, num_experts) or 0)
    chosen = Routing(num_experts=num_experts, top_k=top_k, scale=scale, **routing)

    def mlp(layer: int) -> FeedForward:
        if layer < dense:
            return common.mlp(layer)
        at = f"layers.{layer}."
        return Experts(at, common.hidden, chosen, width, shared, correction_bias=correction_bias, names=names)

    return mlp


def with_dense_layers(fields: Fields) -> Fields:
    """Return the fields with the number of dense layers, which transformers writes as the kind of each layer."""
    if not fields.has("mlp_layer_types"):
        return fields
    layers = read_layer_count(fields)
    kinds = fields.texts("mlp_layer_types", layers)
    dense = kinds.count(_DENSE)
    if kinds != [_DENSE] * dense + [_SPARSE] * (layers - dense):
        raise fields.error('mlp_layer_types must name "dense" layers first and "sparse" layers after them')
    return fields.with_values(first_k_dense_replace=dense)


def read_skipped(fields: Fields) -> int:
    """Return the number of layers after the others that predict several tokens at once (MTP)."""
    return fields.integer("num_nextn_predict_layers", 0, 2**8, 0)


def read_latent_attention(
    fields: Fields, *, pairs: bool, rotated: bool = True
) -> Callable[[int, Common], LatentAttention]:
    """Return the function that makes the attention of a layer. Unless `rotated` it has no positions.

    Raises `OperatorError` for sizes that the kernels do not support.
    """
    fields.refuse("attention_bias", False)
    heads = fields.integer("num_attention_heads", 1, MAX_DIM)
    fields.refuse("num_key_value_heads", heads)  # the number of heads that the latent is expanded to
    q_rank = fields.optional_integer("q_lora_rank", 1, MAX_INTERMEDIATE)
    kv_rank = _tiles(fields, "kv_lora_rank", _MAX_LATENT)
    nope_dim = _tiles(fields, "qk_nope_head_dim", MAX_DIM)
    rope_dim = _tiles(fields, "qk_rope_head_dim", MAX_DIM)
    if kv_rank + rope_dim > _MAX_CACHED:
        raise fields.error(f"kv_lora_rank + qk_rope_head_dim is {kv_rank + rope_dim}; it must be at most {_MAX_CACHED}")
    rope = read_rope(fields, rope_dim) if rotated else replace(UNROTATED, rotary_dim=rope_dim)
    value_dim = _tiles(fields, "v_head_dim", MAX_DIM)
    scale = (nope_dim + rope_dim) ** -0.5 * _magnitude(rope) ** 2

    def attention(layer: int, common: Common) -> LatentAttention:
        return LatentAttention(
            f"layers.{layer}.",
            common.hidden,
            heads,
            q_rank,
            kv_rank,
            nope_dim,
            rope_dim,
            value_dim,
            rope,
            scale,
            pairs=pairs,
        )

    return attention


def read_groups(fields: Fields) -> dict[str, Any]:
    """Return the number of groups of experts, and the number of groups that a token chooses from."""
    experts, top_k = read_experts(fields, "n_routed_experts")
    groups = fields.integer("n_group", 1, experts)
    if experts % groups:
        raise fields.error(f"n_group={groups} does not divide the {experts} experts evenly")
    chosen = fields.integer("topk_group", 1, groups)
    if top_k > experts // groups * chosen:
        raise fields.error(
            f"topk_group={chosen} groups hold {experts // groups * chosen} experts, but num_experts_per_tok={top_k}"
        )
    return {"num_groups": groups, "top_groups": chosen}


def _tiles(fields: Fields, key: str, most: int) -> int:
    """Return a size in whole tiles of the kernels. Rows of zeros for each head could fill up `qk_nope_head_dim`, but no
    published model needs them."""
    value = fields.integer(key, 1, most)
    if value % _TILE:
        raise fields.error(
            f"{key}={value} is not supported; the sizes of latent attention must be multiples of {_TILE}. No option "
            "changes this: use a model with other sizes (docs/models.md lists all limits)"
        )
    return value


def _magnitude(rope: RopeConfig) -> float:
    """Return yarn's factor on queries and keys alike, without the factor that is on the rotated part alone."""
    if rope.kind == "default" or not rope.mscale_all_dim or rope.factor <= 1.0:
        return 1.0
    return 0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0
