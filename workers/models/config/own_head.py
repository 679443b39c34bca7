"""Detection of an output head of its own in a checkpoint whose configuration says that the head is tied to its
embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.config.safetensors_files import SafetensorsFile, SafetensorsFiles

_HEAD, _EMBEDDINGS = "lm_head.", "embed_tokens.weight"
_CHUNK = 16 << 20


@dataclass(frozen=True)
class _Tensor:
    about: tuple[Any, Any]  # type and shape
    data: memoryview


def has_own_head(files: SafetensorsFiles) -> bool:
    """Return whether the safetensors have a head that differs, byte by byte, from their embeddings.

    A tied head may be missing. If head and embeddings both exist, transformers, since version 5, ties them only if they
    are equal. Files that cannot be read give False; the loader reports them.
    """
    try:
        heads, embeddings = _find(files)
    except OperatorError:
        return False
    if not heads or not embeddings:
        return False
    (name, head), *others = heads.items()
    return bool(others) or not name.endswith(f"{_HEAD}weight") or not _are_equal(head, embeddings[0])


def _find(files: SafetensorsFiles) -> tuple[dict[str, _Tensor], list[_Tensor]]:
    heads: dict[str, _Tensor] = {}
    embeddings: list[_Tensor] = []
    for file in files:
        for name, tensor in _tensors(file):
            if ".layers." in name or name.startswith("layers."):
                continue  # of a predictor layer
            if name.startswith(_HEAD) or f".{_HEAD}" in name:
                heads[name] = tensor
            elif name.endswith(_EMBEDDINGS):
                embeddings.append(tensor)
    return heads, embeddings


def _are_equal(head: _Tensor, embeddings: _Tensor) -> bool:
    if head.about != embeddings.about or len(head.data) != len(embeddings.data):
        return False
    # Piece by piece: tensors that differ do so early, and are gigabytes.
    cuts = range(0, len(head.data), _CHUNK)
    return all(head.data[begin : begin + _CHUNK] == embeddings.data[begin : begin + _CHUNK] for begin in cuts)


def _tensors(file: SafetensorsFile) -> Iterator[tuple[str, _Tensor]]:
    data = memoryview(file.mapped)[file.begin :]
    for name, about in file.tensors.items():
        first, end = about["data_offsets"]
        yield name, _Tensor((about["dtype"], about["shape"]), data[first:end])
