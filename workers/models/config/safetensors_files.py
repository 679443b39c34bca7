"""The files of a safetensors checkpoint, one or several with an index, and their headers."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import INDEX_BYTES, is_there, map_file, open_file, parse_json, read_json
from safetensors import SafetensorError, safe_open

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# The limits of a header. The library allows 100 MB, which take ten times as much memory when parsed. The largest models
# have 100,000 tensors in more than a hundred files, with some 100 bytes of header each.
_MOST_BYTES = 32 << 20
_MOST_COMMAS = 1_500_000  # about six for a tensor: the cheapest bound on the number of parsed values
_METADATA = "__metadata__"
# Names of norms in the first checkpoints of BERT, and those of later ones; names of matrices that are no modules.
_RENAMED = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    "vision_model.positional_embedding_vlm": "vision_model.positional_embedding_vlm.weight",
    "vision_model.class_embedding": "vision_model.class_embedding.weight",
}


@dataclass(frozen=True)
class SafetensorsFile:
    """A mapped file, and its description of each tensor."""

    path: Path
    tensors: dict[str, dict[str, Any]]
    mapped: mmap.mmap
    begin: int  # offset of the tensors' bytes


class SafetensorsFiles:
    """The files of a folder, which are opened when they are first needed: their headers are parsed once for the
    configuration and for the weights."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __iter__(self) -> Iterator[SafetensorsFile]:
        """Yield all files. Raises `OperatorError` if there are none, or one is damaged."""
        return iter(self._opened)

    @cached_property
    def _opened(self) -> list[SafetensorsFile]:
        return [open_safetensors(path) for path in files_of(self._folder)]


def files_below(folder: Path, name: str) -> list[SafetensorsFile]:
    """Return the files in the folder `name` below `folder`, with tensors that are named "NAME/TENSOR". Raises
    `OperatorError` as `SafetensorsFiles` does."""
    return [
        replace(file, tensors={f"{name}/{tensor}": about for tensor, about in file.tensors.items()})
        for file in SafetensorsFiles(folder / name)
    ]


def open_safetensors(path: Path) -> SafetensorsFile:
    """Open a file. Raises `OperatorError` for another one, or a damaged one.

    The library checks the file, but returns bf16 and fp8 only to torch, whose import takes a second or two. The
    header is therefore read here as well, first: the library parses any header."""
    with open_file(path) as file:
        try:
            header, begin = _read_header(file)
            with safe_open(path, framework="np"):
                pass
            tensors = {_renamed(name): about for name, about in header.items() if name != _METADATA}
            return SafetensorsFile(path, tensors, map_file(file), begin)
        except (SafetensorError, ValueError, RecursionError) as error:
            raise OperatorError(f"{path}: not a valid safetensors file ({error}); fetch it again") from error


def _renamed(name: str) -> str:
    found = next((old for old in _RENAMED if name.endswith(old)), None)
    return name if found is None else name.removesuffix(found) + _RENAMED[found]


def _read_header(file: BinaryIO) -> tuple[Any, int]:
    """Return a file's header, not checked yet, and the offset where the tensors' bytes begin.

    Raises the errors of `parse_json`, and `ValueError` for a header with more bytes or values than models have.
    """
    length = int.from_bytes(file.read(8), "little")
    if length > _MOST_BYTES:
        raise ValueError(f"the header has {length} bytes (limit {_MOST_BYTES})")
    content = file.read(length)
    if content.count(b",") > _MOST_COMMAS:
        raise ValueError(f"the header has at least {content.count(b',')} values (limit {_MOST_COMMAS})")
    return parse_json(content), 8 + length


def files_of(folder: Path) -> list[Path]:
    """Return the files that hold the checkpoint in `folder`. Raises `OperatorError` if they do not exist."""
    if is_there(folder / _SINGLE):
        return [folder / _SINGLE]
    if not is_there(folder / _INDEX):
        pickles = [path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in sorted(folder.glob(pattern))]
        if pickles:
            raise OperatorError(
                f"{folder}: holds {pickles[0]} but no safetensors file; pickled weights can run code and are never "
                "opened: convert the weights to safetensors"
            )
        raise OperatorError(f"{folder}: holds neither {_SINGLE} nor {_INDEX}; fetch the checkpoint again")
    return [folder / name for name in _read_index(folder / _INDEX)]


def _read_index(path: Path) -> list[str]:
    files = read_json(path, INDEX_BYTES).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise OperatorError(f"{path}: weight_map is missing; fetch the checkpoint again")
    names = sorted({str(name) for name in files.values()})
    for name in names:
        # Only files in the folder of the index: a checkpoint must not reach elsewhere in the file system.
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise OperatorError(
                f"{path}: {name[:100]!r} in weight_map is not a safetensors file in the same folder; "
                "fetch the checkpoint again"
            )
        if not is_there(path.parent / name):
            raise OperatorError(f"{path.parent / name}: missing; fetch the checkpoint again")
    return names
