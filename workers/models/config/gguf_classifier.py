"""The classification head of an encoder in a GGUF file, as llama.cpp's converter writes it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

from numaserve.workers.models.config.classifier import GGUF_DENSE, GGUF_LOGITS

if TYPE_CHECKING:
    from gguf import ReaderTensor
    from numaserve.workers.models.config.fields import Fields
    from numaserve.workers.models.config.gguf_file import GGUFFile

RANK = 4  # the pooling_type of rerankers
_UNSTATED = (None, 0, RANK)
_POOLINGS = {1: "mean", 2: "cls"}


def has_classifier(tensors: Mapping[str, ReaderTensor], pooling: int | None) -> bool:
    """Return whether a file with these `tensors` and this `pooling_type` has a head that classifies. Many files of
    rerankers state no pooling. Files of encoders that predict tokens may have the first layer of such a head."""
    return f"{GGUF_LOGITS}.weight" in tensors and pooling in _UNSTATED


def classifier_values(
    file: GGUFFile, tensors: Mapping[str, ReaderTensor], metadata: Fields, hidden: int
) -> dict[str, object]:
    """Return the fields of config.json that describe the head of an encoder with `hidden` columns.

    Raises `OperatorError` if a part of the head is missing, or if the labels are not those of its rows.
    """
    name = metadata.text("general.architecture")
    if f"{GGUF_DENSE}.weight" not in tensors:
        raise metadata.error(
            f"the file has the tensor {GGUF_LOGITS}.weight of a classification head, but not {GGUF_DENSE}.weight;"
            " llama.cpp's converter leaves it out for BERT. Serve the original checkpoint"
        )
    rows = prod(int(dim) for dim in tensors[f"{GGUF_LOGITS}.weight"].shape) // hidden
    labels = list(file.texts(f"{name}.classifier.output_labels"))
    if labels and len(labels) != rows:
        raise metadata.error(
            f"{name}.classifier.output_labels has {len(labels)} labels, but {GGUF_LOGITS}.weight has {rows} rows; fetch"
            " the file again"
        )
    labels = labels or [f"LABEL_{row}" for row in range(rows)]
    pooling = metadata.integer(f"{name}.classifier.pooling_type", 0, RANK, 1)  # as in llama.cpp, for ModernBERT alone
    return {
        "id2label": {str(row): label for row, label in enumerate(labels)},
        "classifier_pooling": _POOLINGS.get(pooling, str(pooling)),
        "classifier_bias": f"{GGUF_DENSE}.bias" in tensors,
    }
