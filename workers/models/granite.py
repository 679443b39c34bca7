"""Granite 3, and the dense models of Granite 4: Llama with factors on embeddings, residuals, scores and logits."""

from dataclasses import replace
from typing import Any

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.embedding import Embedding
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    MAX_INTERMEDIATE,
    read_biases,
    read_common,
    read_head_dim,
    read_layer_count,
)
from numaserve.workers.models.family import Family, GgufForm, Values, without_experts
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.rope import UNROTATED

_HYBRID = "GraniteMoeHybridForCausalLM"
_HYBRID_DEFAULTS = {
    "intermediate_size": 11008,  # of experts
    "shared_intermediate_size": 1024,
    "num_local_experts": 8,
}
_ATTENTION = ("attention", "full_attention")
_IS_ROTATED = {"rope": True, "nope": False}
_INPUT = "shared_mlp.input_linear"
_MLP = MlpNames(_INPUT, _INPUT, "shared_mlp.output_linear")
# GGUF's key after "granite." to config.json's.
_SCALES = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default. Granite 4's architecture has Mamba layers and
    experts, which its dense models do without, and has rope only on request."""
    mlp: dict[str, Any] = {}
    is_hybrid = architecture == _HYBRID
    if is_hybrid:
        fields = fields.with_defaults(**_HYBRID_DEFAULTS)
        _refuse_hybrids(fields)
        mlp = {"names": _MLP, "intermediate": fields.integer("shared_intermediate_size", 1, MAX_INTERMEDIATE)}
    common = read_common(fields)
    residual = _read_factor(fields, "residual_multiplier")
    # Each layer's output is added to the residual stream with a factor. Here the stream is kept divided by the factor
    # instead. Embeddings are divided too, and norms, which depend only on the stream's direction, have an eps to match.
    # An operation with a factor would only add a multiplication to this.
    common = replace(common, eps=common.eps / residual**2)
    attention: dict[str, Any] = {
        "scale": _read_factor(fields, "attention_multiplier"),
        "biases": read_biases(fields),
    }
    if not fields.choice("position_embedding_type", _IS_ROTATED, "nope" if is_hybrid else "rope"):
        attention["rotation"] = Rotation(UNROTATED)

    def block(layer: int) -> Block:
        return common.block(layer, common.attention(layer, **attention), common.mlp(layer, **mlp))

    return common.model(
        "granite",
        architecture,
        block,
        embedding=Embedding(common.vocabulary, common.hidden, _read_factor(fields, "embedding_multiplier") / residual),
        norm=common.norm("norm", "output_norm", factor=1 / _read_factor(fields, "logits_scaling")),
    )


def _read_factor(fields: Fields, key: str) -> float:
    return fields.number(key, 1e-4, 1e4, 1.0)


def _refuse_hybrids(fields: Fields) -> None:
    fields.refuse("num_local_experts", 0)
    other = sorted(set(fields.texts("layer_types", read_layer_count(fields))) - set(_ATTENTION))
    if other:
        raise fields.error(
            f"layer_types holds {other[0]!r}; Granite 4 models are supported only if all layers are attention layers"
        )


def _gguf_values(metadata: Fields, values: Values) -> Values:
    """Return the fields of a GGUF file. A scale that is missing or 0 means none. Attention's scale is then that of
    other families."""
    found = {key: metadata.values.get(f"granite.{name}") for name, key in _SCALES.items()}
    scores = read_head_dim(Fields(values, metadata.where)) ** -0.5
    return {
        **without_experts(metadata, values),
        "attention_multiplier": scores,
        **{key: value for key, value in found.items() if value},
        "position_embedding_type": "rope" if metadata.flag("granite.rope.scaling.finetuned", True) else "nope",
    }


FAMILY = Family(
    name="granite",
    architectures=("GraniteForCausalLM", _HYBRID),
    configure=configure,
    gguf=GgufForm("granite", values=_gguf_values, pairs=True),
)
