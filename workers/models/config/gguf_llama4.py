"""The fields of Llama 4's vision tower in the metadata and the tensors of GGUF files."""

from collections.abc import Mapping

from numaserve.workers.models.config.fields import Fields

_MAX_FACTOR = 16


def llama4_vision(metadata: Fields) -> dict[str, object]:
    """Return the fields of `vision_config` that these towers have alone."""
    return {"pixel_shuffle_ratio": 1 / metadata.integer("clip.vision.projector.scale_factor", 1, _MAX_FACTOR)}


def llama4_widths(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, object]:
    """Return the columns of the adapter, which no metadata states, from the shapes of the file's tensors. They are
    those of published models where the tensor is missing, which the check of all tensors reports."""
    columns = shapes.get("mm.model.fc.weight", (0, 4096))[-1]
    return dict.fromkeys(("projector_input_dim", "projector_output_dim", "vision_output_dim"), columns)
