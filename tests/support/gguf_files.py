"""Writes GGUF files: metadata of any type, and tensors in any of the formats."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.support.k_quants import fitting, quantize

Metadata = Mapping[str, Any]
Array = npt.NDArray[np.float32]
_ADD: dict[type, Any] = {
    bool: gguf.GGUFWriter.add_bool,
    str: gguf.GGUFWriter.add_string,
    int: gguf.GGUFWriter.add_uint32,
    float: gguf.GGUFWriter.add_float32,
    list: gguf.GGUFWriter.add_array,
}
_WHOLE = ("tokenizer.", "clip.", "general.", "split.")  # beginnings of keys without an architecture


def begin(path: Path, architecture: str, metadata: Metadata) -> gguf.GGUFWriter:
    """Return the writer of a file with this metadata. A value of None leaves out its key."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if value is not None:
            _ADD[type(value)](writer, key if key.startswith(_WHOLE) else f"{architecture}.{key}", value)
    return writer


def add(writer: gguf.GGUFWriter, name: str, array: Array, kind: str) -> Array:
    """Add a tensor of the type `kind`, or of that which llama.cpp takes instead where rows are no whole blocks. Return
    the values that the file holds."""
    qtype = fitting(gguf.GGMLQuantizationType[kind], array.shape[-1])
    data = quantize(np.ascontiguousarray(array).reshape(-1, array.shape[-1]), qtype)
    writer.add_tensor(name, data.reshape(*array.shape[:-1], -1) if array.ndim > 1 else data[0].copy(), raw_dtype=qtype)
    held: Array = gguf.quants.dequantize(data, qtype).reshape(array.shape)
    return held


def finish(writer: gguf.GGUFWriter) -> None:
    """Write everything and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf(
    path: Path, architecture: str, metadata: Metadata, tensors: Iterable[tuple[str, Array]] = (), kind: str = "F32"
) -> Path:
    """Write a file with these tensors by their names."""
    writer = begin(path, architecture, metadata)
    for name, array in tensors:
        add(writer, name, array, kind)
    finish(writer)
    return path
