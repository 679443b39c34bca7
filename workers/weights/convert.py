"""Small vectors, and matrices a few rows at a time, converted in numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numaserve.workers.errors import OperatorError
from numaserve.workers.weights.source import RawTensor

Floats = npt.NDArray[np.float32]


def as_float32(tensor: RawTensor) -> Floats:
    """A tensor's values, such as a norm's weights. Raises `OperatorError` for blocks, which no converter writes."""
    match tensor.dtype:
        case "f32":
            return tensor.data.view(np.float32).copy()
        case "f16":
            return tensor.data.view(np.float16).astype(np.float32)
        case "bf16":
            return (tensor.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    raise OperatorError(f"tensor {tensor.name} is {tensor.dtype}; norms, biases and kv_b_proj must be f32, f16 or bf16")
