"""The metadata of a GGUF file, read without its tensors.

The constructor of `gguf.GGUFReader` makes several numpy views per element of an array: 2 s for the vocabulary of a
small model, 10 s for that of a large one. This reader takes a few hundredths of a second.
"""

import mmap
import struct
from pathlib import Path
from typing import TypeAlias

from gguf.constants import GGUF_MAGIC, GGUFValueType
from numaserve.server.tokenizer.types import TokenizerError
from numaserve.workers.interface.files import map_file, open_file

Scalar: TypeAlias = str | int | float | bool
Value: TypeAlias = Scalar | list[Scalar]

_VERSIONS = (2, 3)
_FORMATS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
    GGUFValueType.BOOL: "?",
}


def read_metadata(path: Path) -> dict[str, Value]:
    """Return all keys and values of the file at `path`. Raises `TokenizerError` unless it is a sound little-endian
    GGUF."""
    try:
        with open_file(path) as file, map_file(file) as data:
            return _Reader(data).metadata()
    except (struct.error, ValueError, OverflowError) as error:
        raise TokenizerError(f"{path} is not a valid GGUF file ({error}); download it again") from error


class _Reader:
    """A cursor over the file. Lengths and counts are claims of the file and never determine an allocation."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._offset = 0

    def metadata(self) -> dict[str, Value]:
        magic, version, _tensors, count = self._unpack("IIQQ")
        if magic != GGUF_MAGIC or version not in _VERSIONS:
            raise ValueError(f"magic {magic:#x}, version {version}")
        return {self._string(): self._value(self._type()) for _ in range(count)}

    def _unpack(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from("<" + layout, self._data, self._offset)
        self._offset += struct.calcsize("<" + layout)
        return values

    def _type(self) -> GGUFValueType:
        return GGUFValueType(self._unpack("I")[0])

    def _value(self, kind: GGUFValueType) -> Value:
        if kind == GGUFValueType.ARRAY:
            return self._array()
        return self._string() if kind == GGUFValueType.STRING else self._unpack(_FORMATS[kind])[0]

    def _array(self) -> list[Scalar]:
        kind, (count,) = self._type(), self._unpack("Q")
        if kind == GGUFValueType.ARRAY:
            raise ValueError("arrays of arrays are not supported")
        if kind == GGUFValueType.STRING:
            return [self._string() for _ in range(count)]
        if count > len(self._data):
            raise ValueError(f"an array claims {count} elements, more than the file can hold")
        return list(self._unpack(f"{count}{_FORMATS[kind]}"))

    def _string(self) -> str:
        start = self._offset + 8
        end = start + struct.unpack_from("<Q", self._data, self._offset)[0]
        if end > len(self._data):
            raise ValueError("a string extends past the end of the file")
        self._offset = end
        return self._data[start:end].decode()
