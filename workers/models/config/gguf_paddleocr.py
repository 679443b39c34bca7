"""The fields of PaddleOCR-VL's vision tower in the metadata and the tensors of GGUF files."""

from collections.abc import Mapping
from math import isqrt

from numaserve.workers.models.config.fields import Fields

_MERGE_SIZE = "clip.vision.spatial_merge_size"
_PUBLISHED = (729, 1152), (1152, 3, 14, 14)  # shapes in published models


def paddleocr_vision(metadata: Fields) -> dict[str, object]:
    """Return the field of `vision_config` that files may leave out, as llama.cpp's converter does."""
    return {"spatial_merge_size": metadata.values[_MERGE_SIZE]} if metadata.has(_MERGE_SIZE) else {}


def paddleocr_sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, object]:
    """Return the side of an image whose patches have all positions, from the shapes of the file's tensors: the metadata
    have the side of the largest image. It is that of published models where a tensor is missing, which the check of all
    tensors reports."""
    positions, patches = _PUBLISHED
    count = shapes.get("v.position_embd.weight", positions)[0]
    return {"image_size": isqrt(count) * shapes.get("v.patch_embd.weight", patches)[-1]}
