"""What the families with multi-head latent attention read from config.json in the same way."""

from __future__ import annotations

import math
from typing import Any

from numaserve.workers.models.config.experts import read_experts
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE, read_common, read_layer_count
from numaserve.workers.models.config.rope import read_rope
from numaserve.workers.models.family import MoeNames
from numaserve.workers.models.spec import MlaConfig, ModelConfig, MoeConfig, RopeConfig

_TILE = 32
_MAX_LATENT, _MAX_CACHED = 512, 576  # what the kernels take
_MAX_DIM = 2**12

# transformers' defaults of what config.json leaves out, in both generations.
LATENT_DEFAULTS: dict[str, Any] = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
SHARED_EXPERTS = MoeNames(shared="mlp.shared_experts")


def read_deepseek(
    fields: Fields, family: str, architecture: str, moe: MoeConfig, moe_layers: tuple[int, ...], *, interleaved: bool
) -> ModelConfig:
    """The configuration of a model of either generation, whose experts and layers that have some are read already."""
    latent = _read_latent_attention(fields, interleaved=interleaved)
    return read_common(fields, family, architecture, moe=moe, moe_layers=moe_layers, **latent)


def _read_latent_attention(fields: Fields, *, interleaved: bool) -> dict[str, Any]:
    """The fields of a `ModelConfig` about attention. Raises `OperatorError` for sizes that the kernels do not take."""
    fields.refuse("attention_bias", False)
    heads = fields.integer("num_attention_heads", 1, _MAX_DIM)
    fields.refuse("num_key_value_heads", heads)  # how many the latent is expanded to
    mla = MlaConfig(
        q_lora_rank=fields.optional_integer("q_lora_rank", 1, MAX_INTERMEDIATE),
        kv_lora_rank=_tiles(fields, "kv_lora_rank", _MAX_LATENT),
        nope_dim=_tiles(fields, "qk_nope_head_dim", _MAX_DIM),
        rope_dim=_tiles(fields, "qk_rope_head_dim", _MAX_DIM),
        interleaved=interleaved,
    )
    if mla.cache_dim > _MAX_CACHED:
        raise fields.error(f"kv_lora_rank and qk_rope_head_dim are {mla.cache_dim} together; at most {_MAX_CACHED} fit")
    rope = read_rope(fields, mla.rope_dim)
    return {
        "mla": mla,
        "num_kv_heads": 1,
        "head_dim": _tiles(fields, "v_head_dim", _MAX_DIM),
        "rope": rope,
        "query_scale": mla.query_dim**-0.5 * _magnitude(rope) ** 2,
        "mtp_layers": fields.integer("num_nextn_predict_layers", 0, 2**8, 0),
    }


def read_deepseek_experts(fields: Fields) -> tuple[dict[str, Any], tuple[int, ...]]:
    """The fields of a `MoeConfig` that both generations spell alike, and the layers that have experts."""
    experts, top_k = read_experts(fields, "n_routed_experts")
    fields.refuse("moe_layer_freq", 1)
    width = fields.integer("moe_intermediate_size", 1, MAX_INTERMEDIATE)
    layers = read_layer_count(fields)
    dense = fields.integer("first_k_dense_replace", 0, layers)
    moe = {
        "num_experts": experts,
        "top_k": top_k,
        "intermediate_size": width,
        "scale": fields.number("routed_scaling_factor", 1e-6, 1e6),
        "shared_intermediate_size": width * (fields.optional_integer("n_shared_experts", 0, experts) or 0),
    }
    return moe, tuple(range(dense, layers))


def read_groups(fields: Fields, experts: int) -> dict[str, int]:
    """Into how many groups the experts are divided, and how many of these can be chosen from."""
    groups = fields.integer("n_group", 1, experts)
    if experts % groups:
        raise fields.error(f"{experts} experts cannot be divided into n_group={groups} groups")
    chosen = fields.integer("topk_group", 1, groups)
    if fields.integer("num_experts_per_tok", 1, experts) > experts // groups * chosen:
        raise fields.error(f"topk_group={chosen} groups have fewer experts than a token goes to")
    return {"num_groups": groups, "top_groups": chosen}


def _tiles(fields: Fields, key: str, most: int) -> int:
    value = fields.integer(key, 1, most)
    if value % _TILE:
        raise fields.error(f"{key}={value} is not supported; supported are multiples of {_TILE}")
    return value


def _magnitude(rope: RopeConfig) -> float:
    """Yarn's factor on queries and keys alike, as far as it is not on the rotated part alone."""
    if rope.kind == "default" or not rope.mscale_all_dim or rope.factor <= 1.0:
        return 1.0
    return 0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0
