"""Finds and decodes a quantised matrix, whatever layout it is published in."""

from __future__ import annotations

import functools
from typing import assert_never

from numaserve.workers.models.stored import GGUF_BLOCKS, Stored
from numaserve.workers.weights.quantized import awq, compressed, fp8, gguf_blocks, gptq
from numaserve.workers.weights.quantized.coded import CodedTensor
from numaserve.workers.weights.quantized.parts import Part, Parts, Tensors
from numaserve.workers.weights.source import TensorSource


@functools.lru_cache(maxsize=64)  # experts are alike, and there are many
def parts_of(stored: Stored, rows: int, columns: int) -> Parts:
    """The tensors of a matrix, by what follows the module's name and a dot."""
    match stored.layout:
        case "gptq" | "gptq_v2":
            return gptq.parts(stored, rows, columns)
        case "awq":
            return awq.parts(stored, rows, columns)
        case "packed":
            return compressed.packed_parts(stored, rows, columns)
        case "int8":
            return compressed.int8_parts(stored, rows, columns)
        case "fp8":
            return fp8.parts(stored, rows, columns)
        case "q8_0" | "q4_0" | "q4_1" | "q5_0" | "q5_1" | "q4_k" | "q5_k" | "q6_k":
            return {"weight": Part((stored.layout,), ((rows, columns),))}
        case _:
            assert_never(stored.layout)


def find_tensors(source: TensorSource, module: str, parts: Parts) -> Tensors:
    """The tensors of `module` that are there."""
    names = {suffix: f"{module}.{suffix}" for suffix in parts}
    return {suffix: source.part(name) for suffix, name in names.items() if name in source.names()}


class QuantizedMatrix:
    """One quantised matrix of a checkpoint, decoded a few rows at a time."""

    def __init__(self, source: TensorSource, module: str, stored: Stored, shape: tuple[int, int]) -> None:
        self._source, self._stored, self._shape = source, stored, shape
        self._tensors = find_tensors(source, module, parts_of(stored, *shape))

    def release(self) -> None:
        """Say that it is not needed for now."""
        for tensor in self._tensors.values():
            self._source.release(tensor)

    def decode(self, rows: range) -> CodedTensor:
        """Consecutive rows. Raises `OperatorError` for a damaged tensor."""
        stored, tensors = self._stored, self._tensors
        if stored.layout in GGUF_BLOCKS:
            return gguf_blocks.decode(tensors["weight"], rows)
        match stored.layout:
            case "awq":
                return awq.decode(stored, tensors, rows)
            case "packed":
                return compressed.decode_packed(stored, tensors, self._shape, rows)
            case "int8":
                return compressed.decode_int8(stored, tensors, self._shape, rows)
            case "fp8":
                return fp8.decode(stored, tensors, self._shape, rows)
            case _:
                return gptq.decode(stored, tensors, rows)
