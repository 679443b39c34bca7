"""Detection of an output head of its own in a checkpoint whose configuration says that the head is tied to its
embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import map_file, open_file
from numaserve.workers.models.config.safetensors_files import files_of, read_header

_HEAD, _EMBEDDINGS = "lm_head.", "embed_tokens.weight"
_CHUNK = 16 << 20


@dataclass(frozen=True)
class _Tensor:
    about: tuple[Any, Any]  # type and shape
    data: memoryview


def has_own_head(folder: Path) -> bool:
    """Return whether the safetensors in `folder` have a head that differs, byte by byte, from their embeddings.

    A tied head may be missing. If head and embeddings both exist, transformers, since version 5, ties them only if they
    are equal. Files that cannot be read give False; the loader reports them.
    """
    try:
        heads, embeddings = _find(folder)
    except (OperatorError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return False
    if not heads or not embeddings:
        return False
    (name, head), *others = heads.items()
    return bool(others) or not name.endswith(f"{_HEAD}weight") or not _are_equal(head, embeddings[0])


def _find(folder: Path) -> tuple[dict[str, _Tensor], list[_Tensor]]:
    heads: dict[str, _Tensor] = {}
    embeddings: list[_Tensor] = []
    for path in files_of(folder):
        for name, tensor in _tensors(path):
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


def _tensors(path: Path) -> Iterator[tuple[str, _Tensor]]:
    with open_file(path) as file:
        header, begin = read_header(file)
        data = memoryview(map_file(file))[begin:]
    for name, about in header.items():
        first, end = about["data_offsets"]
        yield name, _Tensor((about["dtype"], about["shape"]), data[first:end])
