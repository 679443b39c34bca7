"""The fields of Pixtral's vision tower, and of models around it, in the metadata of GGUF files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numaserve.workers.models.config.fields import Fields

if TYPE_CHECKING:
    from numaserve.workers.models.config.gguf_file import GGUFFile

_MERGE_SIZE = "clip.vision.spatial_merge_size"


def pixtral_vision(metadata: Fields) -> dict[str, object]:
    """Return the fields of `vision_config` that these towers have alone."""
    act = "silu" if metadata.flag("clip.use_silu", False) else "gelu"
    return {"model_type": "pixtral", "hidden_act": act}


def pixtral_text(text: Fields, model: GGUFFile, metadata: Fields) -> dict[str, object]:
    """Return the fields of `text_config` that the text alone does not need."""
    is_latent = model.scalar("general.architecture") == "mistral4"
    return {"model_type": "mistral4" if is_latent else "mistral"}


def pixtral_outer(metadata: Fields) -> dict[str, object]:
    """Return the fields around both. Only Mistral 3 merges patches; the first Pixtral has LLaVA's projector."""
    if metadata.has(_MERGE_SIZE):
        return {"model_type": "mistral3", "spatial_merge_size": metadata.values[_MERGE_SIZE]}
    return {"model_type": "llava", "vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
