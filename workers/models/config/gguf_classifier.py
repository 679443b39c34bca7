"""The classification head of an encoder in a GGUF file, and that of a decoder that judges documents, as llama.cpp's
converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numaserve.workers.models.config.heads import GGUF_DENSE, GGUF_LOGITS

if TYPE_CHECKING:
    from gguf import ReaderTensor
    from numaserve.workers.models.config.fields import Fields
    from numaserve.workers.models.config.gguf_file import GGUFFile

_SAME = 0.8  # least cosine of two quantized forms of one row, far above that of rows of two matrices
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


def check_judge(file: GGUFFile, tensors: Mapping[str, ReaderTensor], metadata: Fields) -> None:
    """Raise `OperatorError` for a decoder that judges documents, but whose output head is neither in the file nor the
    embeddings.

    The file of such a reranker has the rows of the head for its answers, and the whole head only if it is tied to the
    embeddings: the rows are then those of the embeddings.
    """
    logits = tensors.get(f"{GGUF_LOGITS}.weight")
    if logits is None or "output.weight" in tensors:
        return
    answers = list(file.texts(f"{metadata.text('general.architecture')}.classifier.output_labels"))
    ids = {text: index for index, text in enumerate(file.texts("tokenizer.ggml.tokens")) if text in answers}
    rows = [ids[answer] for answer in answers if answer in ids]
    if len(rows) != len(answers) or not _are_rows(logits, tensors["token_embd.weight"], rows):
        raise metadata.error(
            f"the file has an output head for the answers of a reranker alone ({GGUF_LOGITS}.weight), without the rows"
            " of other tokens. Serve the original checkpoint with --task score"
        )


def _are_rows(some: ReaderTensor, others: ReaderTensor, rows: list[int]) -> bool:
    """Return whether a matrix has those rows of another one, each quantized in its own way."""
    from gguf import dequantize  # noqa: PLC0415 as in load.py

    if some.data.ndim != 2 or others.data.ndim != 2 or max(rows, default=0) >= len(others.data):
        return False
    try:
        found, expected = (
            dequantize(data, tensor.tensor_type) for tensor, data in ((some, some.data), (others, others.data[rows]))
        )
    except NotImplementedError:
        return True  # types that are not supported are reported when the tensor is read
    if found.shape != expected.shape:
        return False
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    return bool(((found * expected).sum(axis=1) >= _SAME * norms).all())
