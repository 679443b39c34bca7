"""A GGUF file's metadata and tensor table, read with the gguf package and checked against the file's size."""

import math
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, ReaderField
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import open_file
from numaserve.workers.mapped import MappedFile

_MAX_ARRAY_ITEMS = 2**24
_MAX_LISTED = 2**10  # more than a model has layers, and less than a vocabulary has tokens
_KNOWN_TYPES = frozenset(int(kind) for kind in GGMLQuantizationType)
_INTEGERS = (GGUFValueType.UINT32, GGUFValueType.INT32)
_READ = (*_INTEGERS, GGUFValueType.BOOL, GGUFValueType.FLOAT32)  # items of arrays


class _UnknownType(Exception):
    """A tensor is of a type that the gguf package does not know: newer than it, or withdrawn."""


class GGUFFile(GGUFReader):
    """A memory-mapped GGUF file. Items of arrays do not become objects, which would take seconds for the tokens and
    merges of a vocabulary."""

    mapped: MappedFile

    def scalar(self, key: str) -> object:
        """Return the number, text or truth value of a metadata key; None if the key is missing or another array.

        Some files have a number for each layer: an array of equal integers counts as that number. An array of truth
        values is a list, and so is a short array of other integers. A damaged text has U+FFFD.
        """
        field = self.fields.get(key)
        if field is None:
            return None
        if field.types[0] == GGUFValueType.ARRAY:
            return field.parts[-1].tolist() if field.types[1] == GGUFValueType.BOOL else _integers(field)
        if field.types[0] == GGUFValueType.STRING:
            return bytes(field.parts[-1]).decode(errors="replace")
        value: object = field.contents()
        return value

    def floats(self, key: str) -> list[float] | None:
        """Return a short array of numbers in fp32; None if the key is missing or another array."""
        field = self.fields.get(key)
        if field is None or field.types != [GGUFValueType.ARRAY, GGUFValueType.FLOAT32]:
            return None
        values: list[float] | None = field.parts[-1].tolist() if len(field.parts[-1]) <= _MAX_LISTED else None
        return values

    def texts(self, key: str) -> Iterator[str]:
        """Yield the texts of an array; none if the key is missing or another array. A damaged text has U+FFFD."""
        field = self.fields.get(key)
        if field is None or field.types != [GGUFValueType.ARRAY, GGUFValueType.STRING]:
            return
        items, at = bytes(field.parts[-1]), 0
        while at < len(items):
            end = at + 8 + struct.unpack_from("<Q", items, at)[0]
            yield items[at + 8 : end].decode(errors="replace")
            at = end

    @property  # type: ignore[override]
    def data(self) -> npt.NDArray[np.uint8]:
        """The mapped file's bytes."""
        return self.mapped.data

    @data.setter
    def data(self, mapped: npt.NDArray[np.uint8]) -> None:
        base: object = mapped.base
        if not isinstance(base, mmap.mmap):
            raise TypeError("this version of the gguf package does not map files into memory")
        self.mapped = MappedFile(base)

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        for field in fields:
            kind = int(field.parts[4][0])
            if kind not in _KNOWN_TYPES:
                raise _UnknownType(f"tensor {bytes(field.parts[1]).decode(errors='replace')!r} has GGML type {kind}")
        super()._build_tensors(start_offs, fields)

    def _get_str(self, offset: int) -> tuple[Any, Any]:
        length, text = super()._get_str(offset)
        if len(text) != length[0]:
            raise ValueError("a string extends past the end of the file")
        return length, text

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        if GGUFValueType(raw_type) != GGUFValueType.ARRAY:
            size, parts, indices, types = super()._get_field_parts(orig_offs, raw_type)
            return size, parts, indices, types
        buffer = self.data.data
        header = struct.unpack_from("<IQ", buffer, orig_offs)
        item, count = GGUFValueType(header[0]), header[1]
        if count > _MAX_ARRAY_ITEMS:
            raise ValueError(f"a metadata array has {count} items (limit {_MAX_ARRAY_ITEMS})")
        begin = end = orig_offs + 12
        if item == GGUFValueType.STRING:
            for _ in range(count):
                end += 8 + struct.unpack_from("<Q", buffer, end)[0]
        elif item in self.gguf_scalar_to_np:
            end += count * self.gguf_scalar_to_np[item]().itemsize
        else:
            raise ValueError("the metadata holds an array of arrays")
        if end > len(self.data):
            raise ValueError("an array extends past the end of the file")
        kept = item == GGUFValueType.STRING or item in _READ
        items = self.data[begin:end].view(self.gguf_scalar_to_np.get(item, np.uint8))
        return end - orig_offs, [items] if kept else [], [], [GGUFValueType.ARRAY, item]


def _integers(field: ReaderField) -> int | list[int] | None:
    values = field.parts[-1]
    if field.types[1] not in _INTEGERS or len(values) == 0:
        return None
    if bool((values == values[0]).all()):
        return int(values[0])
    listed: list[int] | None = values.tolist() if len(values) <= _MAX_LISTED else None
    return listed


def open_gguf(path: Path) -> GGUFFile:
    """Open a GGUF file.

    Raises `OperatorError` when it cannot be read, is damaged, states wrong sizes, or has tensors of unknown types.
    """
    try:
        # An offset near 2**64 must not wrap round to the file's start.
        with open_file(path) as opened, np.errstate(over="raise"):
            file = GGUFFile(opened)  # type: ignore[arg-type]  # it is given to np.memmap, which takes files too
        _check_places(file)
    except _UnknownType as error:
        raise OperatorError(
            f"{path}: {error}, which is not supported; use a file of another type, such as Q8_0 or Q4_K_M"
        ) from error
    # The gguf package checks no bounds of its own: reading past the end raises any of these.
    except (ValueError, IndexError, KeyError, ArithmeticError, RecursionError, struct.error) as error:
        raise OperatorError(f"{path}: not a valid GGUF file ({error}); fetch it again") from error
    return file


def _check_places(file: GGUFFile) -> None:
    """Raise `ValueError` unless tensors fill the file, one after the other and each on a multiple of the alignment.
    llama.cpp writes them so and requires it. Otherwise a tensor with a wrong type would be read all the same."""
    expected, before = int(file.data_offset), "the table of tensors"
    for tensor in file.tensors:
        dims = [int(dim) for dim in tensor.shape]
        end = int(tensor.data_offset) + int(tensor.n_bytes)
        if math.prod(dims) != tensor.n_elements or end > len(file.data):
            raise ValueError(f"tensor {tensor.name!r} of shape {dims} extends past the end of the file")
        if tensor.data_offset != expected:
            raise ValueError(
                f"{before} ends at byte {expected}, but tensor {tensor.name!r} begins at byte {tensor.data_offset}"
            )
        expected, before = end + -end % int(file.alignment), f"tensor {tensor.name!r} of {tensor.tensor_type.name}"
    if file.tensors and len(file.data) > expected:
        raise ValueError(f"{before} ends at byte {expected}, but the file has {len(file.data)} bytes")
