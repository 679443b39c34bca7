"""Mistral and Mistral Small 3, Ministral 3, Pixtral: Llama with a sliding window on every layer, or on none where
`sliding_window` is null; multimodal ones have Pixtral's vision tower."""

from typing import Any

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.models import mistral4
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_experts import has_no_experts
from numaserve.workers.models.config.huggingface import MULTIMODAL, read_common, read_text, read_windows
from numaserve.workers.models.config.pixtral import PIXTRAL_PROJECTOR, read_pixtral_images, seeing_pixtral
from numaserve.workers.models.family import PIXTRAL_BUFFERS, Family, GgufForm, Values, without_experts
from numaserve.workers.models.spec import ModelConfig

_MULTIMODAL, _PIXTRAL = "Mistral3ForConditionalGeneration", "LlavaForConditionalGeneration"
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
    """Map config.json, of the text model or of the multimodal one that holds it as `text_config`."""
    if not fields.has("text_config"):
        return _configure_text(fields, architecture)
    if fields.child("text_config").values.get("model_type") == "mistral4":
        return mistral4.configure(fields, architecture)
    is_llava = architecture == _PIXTRAL or fields.values.get("model_type") == "llava"
    text = read_text(fields, tied=not is_llava)
    text.choice("model_type", {"mistral": None, "ministral3": None}, "llama" if is_llava else "mistral")
    return seeing_pixtral(_configure_text(text, architecture, **MULTIMODAL), fields, llava=is_llava)


def _configure_text(fields: Fields, architecture: str, **changes: Any) -> ModelConfig:
    """Map the fields of a text model. What they leave out has transformers' default: a missing `sliding_window` is
    4096, but none in Ministral 3; null is none."""
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
    architectures=("MistralForCausalLM", _MULTIMODAL, _MINISTRAL, _PIXTRAL),
    configure=configure,
    # Older files say "llama": Llama's family reads those without a tower.
    gguf=GgufForm(
        "mistral3",
        accepts=has_no_experts,
        values=_gguf_values,
        rope=_gguf_rope,
        pairs=True,
        others=("llama",),
        projectors=("", PIXTRAL_PROJECTOR),
    ),
    buffers=PIXTRAL_BUFFERS,
    images=read_pixtral_images,
    needs_processor=False,
)
