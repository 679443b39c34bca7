"""Mistral and Mistral Small 3, Ministral 3: Llama with a sliding window on every layer, or on none where
`sliding_window` is null.

The text part of the multimodal checkpoints is served too; their vision tower is left out.
"""

from dataclasses import replace
from typing import Any

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.models import mistral4
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MULTIMODAL, read_common, read_text, read_windows
from numaserve.workers.models.family import Family, GgufForm, Values, without_experts
from numaserve.workers.models.spec import ModelConfig

_MULTIMODAL = "Mistral3ForConditionalGeneration"
_MINISTRAL = "Ministral3ForCausalLM"
_MINISTRAL_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_MINISTRAL_DEFAULTS = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
    "max_position_embeddings": 262144,
    "rope_parameters": _MINISTRAL_ROPE,
}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json, of the text model or of the multimodal one that holds it as `text_config`. What it leaves out
    has transformers' default: a missing `sliding_window` is 4096, but none in Ministral 3; null is none."""
    changes: dict[str, Any] = {}
    if architecture == _MULTIMODAL:
        fields, changes = read_text(fields), dict(MULTIMODAL)
        if fields.values.get("model_type") == "mistral4":
            return replace(mistral4.configure(fields, architecture), **MULTIMODAL)
        fields.refuse("model_type", "mistral", "ministral3")
    if architecture == _MINISTRAL or fields.text("model_type", "mistral") == "ministral3":
        fields = fields.with_defaults(**_MINISTRAL_DEFAULTS)
    common = read_common(fields)
    windows = read_windows(fields, default=4096)

    def block(layer: int) -> Block:
        return common.block(layer, common.attention(layer, mask=Mask(windows[layer])))

    return common.model("mistral", architecture, block, **changes)


def _gguf_values(metadata: Fields, values: Values) -> Values:
    return {**without_experts(metadata, values), "sliding_window": None}


def _gguf_rope(metadata: Fields) -> Values:
    """Return yarn's factors, which are one in all published models."""
    scale = metadata.optional_number("mistral3.attention.temperature_scale", 0.0, 1e3)
    return {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": scale}


FAMILY = Family(
    name="mistral",
    architectures=("MistralForCausalLM", _MULTIMODAL, _MINISTRAL),
    configure=configure,
    gguf=GgufForm("mistral3", values=_gguf_values, rope=_gguf_rope, pairs=True),  # older files say "llama"
)
