"""The fields of the vision towers of Gemma 3 and 4 in the metadata of GGUF files, and in their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gemma4_vision import UNIFIED
from numaserve.workers.models.config.huggingface import MAX_INTERMEDIATE

if TYPE_CHECKING:
    from numaserve.workers.models.config.gguf_file import GGUFFile
    from numaserve.workers.models.config.gguf_names import Shape

_MAX_SIDE, _MAX_FACTOR = 1 << 16, 64
_FACTOR, _POOLED = 4, 3  # patches of a side of a square, where files of Gemma 3 and of Gemma 4 do not state it
_AXES = 2


def mean_rows(metadata: Fields) -> dict[str, object]:
    """Return the fields of config.json of Gemma 3 that files state in another form."""
    tile = metadata.integer("clip.vision.image_size", 1, _MAX_SIDE)
    side = tile // metadata.integer("clip.vision.patch_size", 1, tile)
    factor = metadata.integer("clip.vision.projector.scale_factor", 1, _MAX_FACTOR, _FACTOR)
    return {"mm_tokens_per_image": (side // factor) ** 2}


def pooled_vision(metadata: Fields) -> dict[str, object]:
    """Return the fields of `vision_config` of Gemma 4 that files state in another form."""
    hidden = metadata.integer("clip.vision.embedding_length", 1, MAX_INTERMEDIATE)
    return {
        "head_dim": hidden // metadata.integer("clip.vision.attention.head_count", 1, hidden),
        "rms_norm_eps": metadata.values.get("clip.vision.attention.layer_norm_epsilon"),
        "pooling_kernel_size": _pooled(metadata),
    }


def patch_vision(metadata: Fields) -> dict[str, object]:
    """Return the fields of `vision_config` of the unified Gemma 4 that files state in another form."""
    return {
        "model_type": UNIFIED,
        "mm_embed_dim": metadata.values.get("clip.vision.embedding_length"),
        "rms_norm_eps": metadata.values.get("clip.vision.attention.layer_norm_epsilon"),
        "pooling_kernel_size": _pooled(metadata),
    }


def _pooled(metadata: Fields) -> int:
    return metadata.integer("clip.vision.projector.scale_factor", 1, _MAX_FACTOR, _POOLED)


def patch_forms(shapes: Mapping[str, Shape]) -> dict[str, object]:
    """Return the fields of `vision_config` of the unified Gemma 4 that follow from the `shapes` of a file's tensors."""
    return {"mm_posemb_size": pooled_forms(shapes).get("position_embedding_size")}


def pooled_text(text: Fields, model: GGUFFile, metadata: Fields) -> dict[str, object]:
    """Return the fields of `text_config` of Gemma 4 that the text alone does not need. Files do not state whether
    tokens of an image see each other: those of models without inputs of layers do."""
    return {
        "use_bidirectional_attention": None if text.values.get("hidden_size_per_layer_input") else "vision",
        "pad_token_id": model.scalar("tokenizer.ggml.padding_token_id"),
    }


def pooled_forms(shapes: Mapping[str, Shape]) -> dict[str, object]:
    """Return the fields of `vision_config` of Gemma 4 that follow from the `shapes` of a file's tensors."""
    positions = shapes.get("v.position_embd.weight")
    if positions is None or len(positions) != _AXES + 1:
        return {}
    return {
        "position_embedding_size": positions[1],
        "standardize": "v.std_bias" in shapes,
        "use_clipped_linears": "v.blk.0.attn_q.input_max" in shapes,
    }
