"""Finds and decodes a quantized matrix, in any published layout."""

import functools
from collections.abc import Callable

from numaserve.workers.layers.stored import GGUF_BLOCKS, Layout, Stored
from numaserve.workers.weights.quantized import awq, compressed, fp8, gptq, mxfp4, nvfp4
from numaserve.workers.weights.quantized.coded import CodedTensor
from numaserve.workers.weights.quantized.parts import Part, Parts, Tensors
from numaserve.workers.weights.source import RawTensor, TensorSource

_PARTS: dict[Layout, Callable[[Stored, int, int], Parts]] = {
    "gptq": gptq.parts,
    "gptq_v2": gptq.parts,
    "awq": awq.parts,
    "packed": compressed.packed_parts,
    "int8": compressed.int8_parts,
    "fp8": fp8.parts,
    "mxfp8": fp8.parts,
    "gpt_oss": mxfp4.parts,
    "mxfp4_packed": mxfp4.parts,
    "nvfp4_packed": nvfp4.parts,
    "modelopt_nvfp4": nvfp4.parts,
}
# Decoders of layouts whose tensors do not show the number of columns, or how rows share scales.
_DECODERS: dict[Layout, Callable[[Stored, Tensors, tuple[int, int], range], CodedTensor]] = {
    "packed": compressed.decode_packed,
    "int8": compressed.decode_int8,
    "fp8": fp8.decode,
    "mxfp8": fp8.decode,
    "gpt_oss": mxfp4.decode,
    "mxfp4_packed": mxfp4.decode,
    "nvfp4_packed": nvfp4.decode,
    "modelopt_nvfp4": nvfp4.decode,
}


@functools.lru_cache(maxsize=64)  # experts are alike, and there are many
def parts_of(stored: Stored, rows: int, columns: int) -> Parts:
    """Return the tensors of a matrix, by the name that follows the module's name and a dot."""
    if stored.layout in GGUF_BLOCKS:
        return {"weight": Part((stored.layout,), ((rows, columns),))}
    return _PARTS[stored.layout](stored, rows, columns)


def find_tensors(source: TensorSource, module: str, parts: Parts) -> Tensors:
    """Return the tensors of `module` that exist. Raises `OperatorError` for a tensor of another type or shape."""
    found: dict[str, RawTensor] = {}
    for suffix, part in parts.items():
        name = f"{module}.{suffix}"
        if name in source.names():
            found[suffix] = source.part(name)
            part.check(found[suffix])
    return found


class QuantizedMatrix:
    """One quantized matrix of a checkpoint, decoded a few rows at a time."""

    def __init__(self, source: TensorSource, module: str, stored: Stored, shape: tuple[int, int]) -> None:
        self._source, self._stored, self._shape = source, stored, shape
        self._tensors = find_tensors(source, module, parts_of(stored, *shape))

    def release(self) -> None:
        """Mark the matrix as not needed for now."""
        for tensor in self._tensors.values():
            self._source.release(tensor)

    def decode(self, rows: range) -> CodedTensor:
        """Return consecutive rows, or for gpt-oss rows at equal distances. Raises `OperatorError` for a damaged
        tensor."""
        stored, tensors = self._stored, self._tensors
        if stored.layout in GGUF_BLOCKS:
            # For GGUF files only, see `models/load.py`.
            from numaserve.workers.weights.quantized import gguf_blocks  # noqa: PLC0415

            return gguf_blocks.decode(tensors["weight"], rows)
        if stored.layout in _DECODERS:
            return _DECODERS[stored.layout](stored, tensors, self._shape, rows)
        if stored.layout == "awq":
            return awq.decode(stored, tensors, rows)
        return gptq.decode(stored, tensors, rows)
