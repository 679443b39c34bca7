"""The few conversions done in numpy: small vectors, and slices that the packing code cannot take as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numaserve.workers.errors import OperatorError
from numaserve.workers.weights.source import RawTensor

_BLOCK = 32
_BLOCK_TYPES = {
    "q8_0": GGMLQuantizationType.Q8_0,
    "q4_0": GGMLQuantizationType.Q4_0,
    "q4_1": GGMLQuantizationType.Q4_1,
}


def as_float32(tensor: RawTensor) -> npt.NDArray[np.float32]:
    """A vector's values, such as a norm's weights. Raises `OperatorError` for blocks, which no converter writes."""
    match tensor.dtype:
        case "f32":
            return tensor.data.view(np.float32).copy()
        case "f16":
            return tensor.data.view(np.float16).astype(np.float32)
        case "bf16":
            return (tensor.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    raise OperatorError(f"tensor {tensor.name} is {tensor.dtype}; norms and biases must be f32, f16 or bf16")


def with_whole_blocks(tensor: RawTensor, first_col: int) -> RawTensor:
    """`tensor`, made f32 where its columns from `first_col` on would begin inside a block of 32.

    That happens when heads of a width that is no multiple of 32 are divided over ranks; it costs memory for a moment.
    """
    if first_col % _BLOCK == 0 or tensor.dtype not in _BLOCK_TYPES:
        return tensor
    rows = tensor.data.reshape(tensor.shape[0], -1)
    values = np.ascontiguousarray(dequantize(rows, _BLOCK_TYPES[tensor.dtype]), dtype=np.float32)
    return replace(tensor, data=values.reshape(-1).view(np.uint8), dtype="f32")
