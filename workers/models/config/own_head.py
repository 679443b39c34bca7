"""Whether a checkpoint that says that its output head is tied to its embeddings has a head of its own all the same."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numaserve.workers.errors import OperatorError
from numaserve.workers.files import INDEX_BYTES, map_file, open_file

_HEAD, _EMBEDDINGS = "lm_head.", "embed_tokens.weight"
_CHUNK = 16 << 20


@dataclass(frozen=True)
class _Tensor:
    about: tuple[Any, Any]  # type and shape
    data: memoryview


def has_own_head(folder: Path) -> bool:
    """Whether the safetensors in `folder` have a head that is not, byte by byte, their embeddings.

    A tied head need not be there, and where both are there transformers, since version 5, ties those that are equal
    alone. False for files that cannot be read; the loader reports them.
    """
    heads: dict[str, _Tensor] = {}
    embeddings: list[_Tensor] = []
    for path in folder.glob("*.safetensors"):
        for name, tensor in _tensors(path):
            if ".layers." in name or name.startswith("layers."):
                continue  # of a layer that predicts
            if name.startswith(_HEAD) or f".{_HEAD}" in name:
                heads[name] = tensor
            elif name.endswith(_EMBEDDINGS):
                embeddings.append(tensor)
    if not heads or not embeddings:
        return False
    (name, head), *others = heads.items()
    return bool(others) or not name.endswith(f"{_HEAD}weight") or not _are_equal(head, embeddings[0])


def _are_equal(head: _Tensor, embeddings: _Tensor) -> bool:
    if head.about != embeddings.about or len(head.data) != len(embeddings.data):
        return False
    # Piece by piece: those that differ do so at once, and are gigabytes.
    cuts = range(0, len(head.data), _CHUNK)
    return all(head.data[begin : begin + _CHUNK] == embeddings.data[begin : begin + _CHUNK] for begin in cuts)


def _tensors(path: Path) -> Iterator[tuple[str, _Tensor]]:
    try:
        with open_file(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if length > INDEX_BYTES:
                return
            header = json.loads(file.read(length))
            mapped = map_file(file)
        yield from _tensors_of(header, mapped, 8 + length)
    except (OperatorError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return


def _tensors_of(header: dict[str, dict[str, Any]], mapped: mmap.mmap, begin: int) -> Iterator[tuple[str, _Tensor]]:
    data = memoryview(mapped)[begin:]
    for name, about in header.items():
        if "data_offsets" in about:
            first, end = about["data_offsets"]
            yield name, _Tensor((about["dtype"], about["shape"]), data[first:end])
