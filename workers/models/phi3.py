"""Phi-3, and Phi-4-mini, which shares the architecture: fused qkv and gate-up projections, longrope."""

from __future__ import annotations

from numaserve.workers.models import decoder
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    read_common,
    read_head_dim,
    read_layer_count,
    read_layer_kinds,
    read_sliding_window,
)
from numaserve.workers.models.config.rope import read_rope
from numaserve.workers.models.family import Family, LayerNames
from numaserve.workers.models.spec import ModelConfig, RopeKind

# Early checkpoints say "su" and "yarn" where longrope is meant.
_ROPE_KINDS: dict[str, RopeKind] = {"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    fields = fields.with_defaults(rms_norm_eps=1e-5)
    window = read_sliding_window(fields)
    kinds = read_layer_kinds(fields, ("full" if window is None else "sliding",) * read_layer_count(fields))
    rope = read_rope(fields, read_head_dim(fields), kinds=_ROPE_KINDS)
    return read_common(fields, "phi3", architecture, sliding_window=window, layer_kinds=kinds, rope=rope)


FAMILY = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    gguf_architecture="phi3",
    configure=configure,
    forward=decoder.forward,
    names=LayerNames(
        q="self_attn.qkv_proj",
        k="self_attn.qkv_proj",
        v="self_attn.qkv_proj",
        gate="mlp.gate_up_proj",
        up="mlp.gate_up_proj",
    ),
)
