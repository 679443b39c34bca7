"""Gemma 2: norms after each sub-layer too, soft caps on attention scores and logits, every second layer sliding."""

from __future__ import annotations

from typing import Any

from numaserve.workers.models import decoder
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    read_activation,
    read_common,
    read_layer_count,
    read_layer_kinds,
    read_sliding_window,
)
from numaserve.workers.models.family import Family, LayerNames
from numaserve.workers.models.spec import LayerKind, ModelConfig

NAMES = LayerNames(
    mlp_norm="pre_feedforward_layernorm",
    post_attention_norm="post_attention_layernorm",
    post_mlp_norm="post_feedforward_layernorm",
)
_DEFAULTS = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    fields = fields.with_defaults(**_DEFAULTS)
    layers = read_layer_count(fields)
    alternating: tuple[LayerKind, ...] = tuple("full" if layer % 2 else "sliding" for layer in range(layers))
    kinds = read_layer_kinds(fields, alternating)
    return read_common(fields, "gemma2", architecture, layer_kinds=kinds, **gemma_values(fields))


def gemma_values(fields: Fields) -> dict[str, Any]:
    """The fields of `ModelConfig` that Gemma 2 and 3 read alike."""
    bias = fields.flag("attention_bias", False)
    # The square root is taken in fp32 here, as transformers does in an fp32 model; its bf16 models round it.
    return {
        "activation": read_activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
        "embedding_scale": fields.integer("hidden_size", 1, 2**17) ** 0.5,
        "query_scale": fields.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0) ** -0.5,
        "sliding_window": read_sliding_window(fields, default=4096),
        "attention_softcap": fields.optional_number("attn_logit_softcapping", 1e-3, 1e6),
        "final_softcap": fields.optional_number("final_logit_softcapping", 1e-3, 1e6),
        "qkv_bias": bias,
        "attention_output_bias": bias,
        "norm_plus_one": True,
        "post_norms": True,
    }


FAMILY = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    gguf_architecture="gemma2",
    configure=configure,
    forward=decoder.forward,
    names=NAMES,
)
