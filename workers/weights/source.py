"""The loader's view of a checkpoint, whatever its format."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.stored import BlockLayout

Floats = npt.NDArray[np.float32]

PlainDType = Literal["bf16", "f16", "f32"]
CodeDType = Literal["u8", "i8", "i32", "i64", "e4m3"]
DType = PlainDType | BlockLayout | CodeDType


@dataclass(frozen=True)
class RawTensor:
    """A tensor as stored in its file. `data` is a view of the mapped file: nothing is read before it is touched."""

    name: str  # as in the file, for messages
    data: npt.NDArray[np.uint8]  # [bytes], row-major
    dtype: DType
    shape: tuple[int, ...]  # of elements, out features first
    turned: bool = False  # a matrix stored in its file with in features first
    file: Path | None = None  # for messages; None for a tensor made in memory

    @property
    def label(self) -> str:
        """The tensor's name and its file, for messages."""
        return f"tensor {self.name}" if self.file is None else f"{self.file}: tensor {self.name}"


def as_float32(tensor: RawTensor) -> Floats:
    """Return a tensor's values, such as a norm's weights. Raises `OperatorError` for blocks, which no converter
    writes."""
    match tensor.dtype:
        case "f32":
            return tensor.data.view(np.float32).copy()
        case "f16":
            return tensor.data.view(np.float16).astype(np.float32)
        case "bf16":
            return (tensor.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    raise OperatorError(f"tensor {tensor.name} is {tensor.dtype}; norms, biases and kv_b_proj must be f32, f16 or bf16")


class TensorSource(Protocol):
    """A checkpoint's tensors under Hugging Face's names."""

    def names(self) -> Collection[str]:
        """The names of all tensors."""

    def tensor(self, name: str) -> RawTensor:
        """Return a tensor of numbers, or of blocks of them. Raises `OperatorError` for another dtype or a damaged
        file."""

    def release(self, tensor: RawTensor) -> None:
        """Mark the tensor as not needed for now. Its file is mapped, and pages that were read would stay in memory in
        addition to the packed weights. It can be read again."""

    def part(self, name: str) -> RawTensor:
        """Return a tensor of a quantized matrix, which may hold codes. Raises `OperatorError` as `tensor` does."""
