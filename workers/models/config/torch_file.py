"""Small files of torch, such as the linear layers next to a checkpoint of BGE-M3: zip archives with a pickle that
describes tensors, and their bytes. Nothing in them is executed; see `pickled_tensors`."""

import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import read_file
from numaserve.workers.models.config.pickled_tensors import (
    ITEM_BYTES,
    DType,
    StoredTensor,
    Unreadable,
    pickled_tensors,
)

_MOST_BYTES = 128 << 20  # of a file: a square matrix of 4096 columns in fp32 has half of that
_MOST_PICKLE_BYTES = 1 << 16
_MOST_ENTRIES = 64
_PICKLE, _ORDER = "data.pkl", "byteorder"
_ENCRYPTED = 1  # in the flags of an entry
# Errors of the library for archives that are damaged.
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, EOFError, OverflowError, ValueError)


@dataclass(frozen=True)
class TorchTensor:
    """A tensor of a file: its bytes are little-endian and row-major."""

    dtype: DType
    shape: tuple[int, ...]
    data: bytes


def read_torch_file(path: Path) -> dict[str, TorchTensor]:
    """Return the tensors of the file at `path`, by name. Raises `OperatorError` for anything but a dictionary of
    tensors in fp32, fp16 or bf16."""
    content = read_file(path, _MOST_BYTES)
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            return _tensors(archive)
    except Unreadable as error:
        raise OperatorError(
            f"{path}: not a file of torch with tensors alone ({error}). Download the file again, or remove it to serve"
            " the model without it"
        ) from error
    except _DAMAGED as error:
        raise OperatorError(
            f"{path}: not a zip archive of torch ({error}). Download the file again, or save it with torch 1.6 or later"
        ) from error


def _tensors(archive: zipfile.ZipFile) -> dict[str, TorchTensor]:
    entries = _entries(archive)
    if _PICKLE not in entries:
        raise Unreadable(f"it has no {_PICKLE}")
    if _ORDER in entries and _read(archive, entries[_ORDER], len("little")) != b"little":
        raise Unreadable("its numbers are not little-endian")
    found = pickled_tensors(_read(archive, entries[_PICKLE], _MOST_PICKLE_BYTES))
    storages: dict[str, bytes] = {}
    for each in found.values():
        if each.key not in storages:
            entry = entries.get(f"data/{each.key}")
            if entry is None:
                raise Unreadable(f"it has no entry {'data/' + each.key[:100]!r}")
            storages[each.key] = _read(archive, entry, _MOST_BYTES)
    return {name: _tensor(each, storages[each.key]) for name, each in found.items()}


def _entries(archive: zipfile.ZipFile) -> Mapping[str, zipfile.ZipInfo]:
    """Return the entries by their path below the archive's only folder."""
    listed = archive.infolist()
    if len(listed) > _MOST_ENTRIES:
        raise Unreadable(f"it has {len(listed)} entries (limit {_MOST_ENTRIES})")
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in listed:
        name = entry.filename.partition("/")[2]
        if name in entries:
            raise Unreadable(f"it has the entry {name[:100]!r} twice")
        entries[name] = entry
    return entries


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
    """Return the bytes of an entry. Compressed ones are refused: torch stores them, and they could expand to any
    size."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & _ENCRYPTED:
        raise Unreadable(f"the entry {entry.filename[:100]!r} is compressed or encrypted")
    if entry.file_size > most or entry.compress_size != entry.file_size:
        raise Unreadable(f"the entry {entry.filename[:100]!r} has {entry.file_size} bytes (limit {most})")
    return archive.read(entry)


def _tensor(tensor: StoredTensor, storage: bytes) -> TorchTensor:
    item = ITEM_BYTES[tensor.dtype]
    if len(storage) != tensor.storage_size * item:
        raise Unreadable(f"the entry {'data/' + tensor.key[:100]!r} has {len(storage)} bytes, not those of its numbers")
    first = tensor.first * item
    return TorchTensor(tensor.dtype, tensor.shape, storage[first : first + tensor.elements * item])
