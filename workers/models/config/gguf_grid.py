"""The fields of the vision tower of Qwen3-VL and Qwen3.5 in the metadata of GGUF files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numaserve.workers.models.config.fields import Fields

if TYPE_CHECKING:
    from numaserve.workers.models.config.gguf_file import GGUFFile

_MAX_SIDE = 1 << 16
_AXES = 3


def grid_vision(metadata: Fields) -> dict[str, object]:
    """Return the fields of `vision_config`. Files state the side of an image whose patches have all positions."""
    tile = metadata.integer("clip.vision.image_size", 1, _MAX_SIDE)
    patch = metadata.integer("clip.vision.patch_size", 1, tile)
    return {
        "num_position_embeddings": (tile // patch) ** 2,
        "deepstack_visual_indexes": _deep(metadata),
        "spatial_merge_size": metadata.values.get("clip.vision.spatial_merge_size"),
        "out_hidden_size": metadata.values.get("clip.vision.projection_dim"),
    }


def grid_text(text: Fields, model: GGUFFile, metadata: Fields) -> dict[str, object]:
    """Return the fields of `text_config` that the text alone does not need. Raises `OperatorError` for a text model
    that has deep features of another tower."""
    name = model.scalar("general.architecture")
    deep = model.scalar(f"{name}.n_deepstack_layers") or 0
    if deep != len(_deep(metadata)):
        raise metadata.error(
            f"the tower has {len(_deep(metadata))} deep features, and the text model takes {deep}; use the mmproj file"
            " of this model"
        )
    sections = model.scalar(f"{name}.rope.dimension_sections")
    if not isinstance(sections, list):
        raise text.error(f"{name}.rope.dimension_sections must have a number for each coordinate; convert it again")
    return {"rope_scaling": {**text.child("rope_scaling").values, "mrope_section": sections[:_AXES]}}


def grid_sizes(metadata: Fields) -> dict[str, object]:
    """Return the bounds of an image's pixels, which files need not state."""
    return {f"{bound}_pixels": metadata.values.get(f"clip.vision.image_{bound}_pixels") for bound in ("min", "max")}


def _deep(metadata: Fields) -> list[int]:
    """Return the blocks whose streams become features too."""
    flags = metadata.values.get("clip.vision.is_deepstack_layers")
    return [index for index, each in enumerate(flags) if each] if isinstance(flags, list) else []
