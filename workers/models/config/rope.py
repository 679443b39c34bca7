"""Reads the rotary embedding's parameters, in the older spelling (`rope_theta`, `rope_scaling`) and the newer one
(`rope_parameters`)."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.program.rope import QueryScale, RopeConfig, RopeKind

_KINDS: Mapping[str, RopeKind] = {
    "default": "default",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "proportional": "linear",  # see `_proportional`
}
MAX_POSITION = 2**26
_MAX_FACTOR = 1e6


def rope_fields(fields: Fields) -> Fields:
    """The object with the parameters of a model's one rotary embedding, in either spelling."""
    return fields.child("rope_scaling" if fields.has("rope_scaling") else "rope_parameters")


def read_rope(
    fields: Fields, head_dim: int, *, kinds: Mapping[str, RopeKind] = _KINDS, default_theta: float = 10000.0
) -> RopeConfig:
    """Return the rotary embedding of a model with one kind of it. `kinds` are the names that the family knows."""
    rope = rope_fields(fields)
    theta = fields.number("rope_theta", 1.0, 1e12, default_theta)
    partial = fields.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    read = rope_from(fields, rope, head_dim, theta=theta, partial=partial, kinds=kinds)
    return _with_query_scale(read, rope)


def read_ropes(
    fields: Fields, head_dim: int, *, full_theta: float, sliding_theta: float, partial: float = 1.0
) -> tuple[RopeConfig, RopeConfig]:
    """Return the rotary embeddings of layers that see all tokens and of layers that slide; both have a default
    theta. `partial` is the default of the part of a head that is rotated."""
    nested = fields.child("rope_parameters")
    # In the older spelling the scaling is of the full layers only.
    full = fields.child("rope_scaling") if fields.has("rope_scaling") else nested.child("full_attention")
    sliding = nested.child("sliding_attention")
    return (
        rope_from(fields, full, head_dim, theta=full_theta, partial=partial),
        rope_from(fields, sliding, head_dim, theta=sliding_theta, partial=partial),
    )


def rope_from(
    model: Fields,
    rope: Fields,
    head_dim: int,
    *,
    theta: float,
    partial: float = 1.0,
    kinds: Mapping[str, RopeKind] = _KINDS,
) -> RopeConfig:
    """Return the rotary embedding that the object `rope` describes; `theta` and `partial` are the defaults.

    Raises `OperatorError` for a kind that is not in `kinds` and for values out of range.
    """
    key = "rope_type" if rope.has("rope_type") else "type"
    kind = rope.choice(key, kinds, "default")
    if rope.values.get(key) == "proportional":
        return _proportional(rope, head_dim, theta)
    rotary_dim = int(head_dim * rope.number("partial_rotary_factor", 0.0, 1.0, partial))
    if rotary_dim < 2 or rotary_dim % 2:
        raise rope.error(f"rotary dimension {rotary_dim} is not supported; it must be even and at least 2")
    theta = rope.number("rope_theta", 1.0, 1e12, theta)
    if kind == "default":
        return RopeConfig(theta=theta, rotary_dim=rotary_dim)
    if kind == "linear":
        return RopeConfig("linear", theta, rotary_dim, factor=rope.number("factor", 1.0, _MAX_FACTOR))
    max_position = model.integer("max_position_embeddings", 1, MAX_POSITION)
    # Phi-3 keeps the original length next to the rope object, and transformers gives that length precedence.
    holder = model if model.has("original_max_position_embeddings") else rope
    original = holder.integer("original_max_position_embeddings", 2, MAX_POSITION, max_position)
    if kind == "llama3":
        return _llama3(rope, theta, rotary_dim, original)
    factor = rope.number("factor", 0.0, _MAX_FACTOR, max_position / original)
    attention_factor = rope.optional_number("attention_factor", 0.0, 100.0)
    if kind == "longrope":
        return RopeConfig(
            "longrope",
            theta,
            rotary_dim,
            factor=factor,
            attention_factor=attention_factor,
            original_max_position=original,
            short_factor=rope.numbers("short_factor", rotary_dim // 2, 1e-3, _MAX_FACTOR),
            long_factor=rope.numbers("long_factor", rotary_dim // 2, 1e-3, _MAX_FACTOR),
        )
    if factor == 0.0 or theta == 1.0:
        raise rope.error(f"yarn needs factor > 0 and rope_theta > 1, not {factor:g} and {theta:g}")
    return RopeConfig(
        "yarn",
        theta,
        rotary_dim,
        factor=factor,
        attention_factor=attention_factor,
        original_max_position=original,
        # 0 means the default here, as it does in transformers.
        beta_fast=rope.number("beta_fast", 0.0, 1e4, 32.0) or 32.0,
        beta_slow=rope.number("beta_slow", 0.0, 1e4, 1.0) or 1.0,
        mscale=rope.optional_number("mscale", 0.0, 100.0),
        mscale_all_dim=rope.optional_number("mscale_all_dim", 0.0, 100.0),
        truncate=rope.flag("truncate", True),
    )


def _with_query_scale(rope: RopeConfig, fields: Fields) -> RopeConfig:
    """Return the embedding with the scale of queries that its object `fields` states, if it states one."""
    beta = fields.optional_number("llama_4_scaling_beta", 0.0, 1e3)
    if not beta:
        return rope
    length = fields.integer("original_max_position_embeddings", 2, MAX_POSITION)
    return replace(rope, query_scale=query_scale(beta, length))


def query_scale(beta: float, length: int, shift: int = 0) -> QueryScale:
    """Return a scale of queries; `beta` is rounded to fp32, in which GGUF files have it."""
    return QueryScale(float(np.float32(beta)), length, shift)


def _proportional(rope: Fields, head_dim: int, theta: float) -> RopeConfig:
    """All dimensions of a head lie in pairs; only the first pairs are rotated."""
    pairs = int(rope.number("partial_rotary_factor", 0.0, 1.0, 1.0) * head_dim // 2)
    if head_dim % 2 or not pairs:
        raise rope.error(f"{pairs} pairs of {head_dim} dimensions cannot be rotated; the dimensions must be even")
    theta, factor = rope.number("rope_theta", 1.0, 1e12, theta), rope.number("factor", 1e-6, _MAX_FACTOR, 1.0)
    return RopeConfig("linear", theta, 2 * pairs, factor=factor, distance=head_dim // 2)


def _llama3(rope: Fields, theta: float, rotary_dim: int, original: int) -> RopeConfig:
    low = rope.number("low_freq_factor", 1e-3, 1e3)
    high = rope.number("high_freq_factor", 1e-3, 1e3)
    if low > high:
        raise rope.error(f"low_freq_factor={low:g} must not be above high_freq_factor={high:g}")
    return RopeConfig(
        "llama3",
        theta,
        rotary_dim,
        factor=rope.number("factor", 1.0, _MAX_FACTOR),
        original_max_position=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )
