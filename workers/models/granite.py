"""Granite 3: Llama with factors on embeddings, residuals, scores and logits."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.embedding import Embedding
from numaserve.workers.layers.layer import FeedForward, Mixer
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import Common, read_biases, read_common, read_head_dim
from numaserve.workers.models.family import Family, GgufForm, Values, without_experts
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.rope import UNROTATED

_IS_ROTATED = {"rope": True, "nope": False}
# GGUF's key after the architecture's name to config.json's.
_SCALES = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    common = read_common(fields)
    return granite(common, "granite", architecture, common.mlp, positions="rope")


def granite(
    common: Common,
    family: str,
    architecture: str,
    mlp_of: Callable[[int], FeedForward],
    *,
    positions: str,
    mixer_of: Callable[[int], Mixer | None] = lambda layer: None,
) -> ModelConfig:
    """Return a model with factors. `positions` is the default of `position_embedding_type`. Layers for which
    `mixer_of` returns None have attention."""
    fields = common.fields
    residual = _read_factor(fields, "residual_multiplier")
    # Each layer's output is added to the residual stream with a factor. Here the stream is kept divided by the factor
    # instead. Embeddings are divided too, and norms, which depend only on the stream's direction, have an eps to match.
    # An operation with a factor would only add a multiplication to this.
    common = replace(common, eps=common.eps / residual**2)
    attention: dict[str, Any] = {
        "scale": _read_factor(fields, "attention_multiplier"),
        "biases": read_biases(fields),
    }
    if not fields.choice("position_embedding_type", _IS_ROTATED, positions):
        attention["rotation"] = Rotation(UNROTATED)

    def block(layer: int) -> Block:
        return common.block(layer, mixer_of(layer) or common.attention(layer, **attention), mlp_of(layer))

    return common.model(
        family,
        architecture,
        block,
        embedding=Embedding(common.vocabulary, common.hidden, _read_factor(fields, "embedding_multiplier") / residual),
        norm=common.norm("norm", "output_norm", factor=1 / _read_factor(fields, "logits_scaling")),
    )


def factor_values(metadata: Fields, values: Values) -> dict[str, object]:
    """Return the fields of a GGUF file. A scale that is missing or 0 means none. Attention's scale is then that of
    other families."""
    name = metadata.text("general.architecture")
    found = {key: metadata.values.get(f"{name}.{scale}") for scale, key in _SCALES.items()}
    scores = read_head_dim(Fields(values, metadata.where)) ** -0.5
    return {
        "attention_multiplier": scores,
        **{key: value for key, value in found.items() if value},
        "position_embedding_type": "rope" if metadata.flag(f"{name}.rope.scaling.finetuned", True) else "nope",
    }


def _read_factor(fields: Fields, key: str) -> float:
    return fields.number(key, 1e-4, 1e4, 1.0)


def _gguf_values(metadata: Fields, values: Values) -> Values:
    return {**without_experts(metadata, values), **factor_values(metadata, values)}


FAMILY = Family(
    name="granite",
    architectures=("GraniteForCausalLM",),
    configure=configure,
    gguf=GgufForm("granite", values=_gguf_values, pairs=True),
)
