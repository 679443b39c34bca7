"""The tensors of a matrix in a published layout, with the types and shapes that they must have."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.stored import Stored
from numaserve.workers.weights.quantized.coded import Codes, Floats
from numaserve.workers.weights.source import RawTensor, as_float32

FLOAT_DTYPES = ("f16", "bf16", "f32")


@dataclass(frozen=True)
class Part:
    """One of the tensors of a matrix, with any of `dtypes` and any of `shapes`."""

    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    required: bool = True

    def check(self, tensor: RawTensor) -> None:
        """Raise `OperatorError` if `tensor` is something else."""
        if tensor.dtype not in self.dtypes or tensor.shape not in self.shapes:
            wanted = " or ".join(str(list(shape)) for shape in dict.fromkeys(self.shapes))
            raise OperatorError(
                f"{tensor.label} is {tensor.dtype} of shape {list(tensor.shape)}, but the configuration asks for "
                f"{' or '.join(self.dtypes)} of shape {wanted}; fetch the checkpoint again"
            )


Parts = Mapping[str, Part]  # by the name that follows the module's name and a dot
Tensors = Mapping[str, RawTensor]


def scale_part(rows: int, groups: int) -> Part:
    """Return the part for scales: of all rows and groups, of all rows, or of the whole tensor."""
    shapes: list[tuple[int, ...]] = [(rows, groups)]
    if groups == 1:
        shapes += [(rows,), (), (1,), (1, 1)]
    return Part(FLOAT_DTYPES, tuple(shapes))


def fixed_input_scale() -> Part:
    """Return the part for the static scale of a matrix's activations, which is not used."""
    return Part(FLOAT_DTYPES, ((), (1,), (1, 1)), required=False)


def words(tensor: RawTensor) -> npt.NDArray[np.uint32]:
    """Return a tensor of int32 with its shape, as a view."""
    return tensor.data.view("<u4").reshape(tensor.shape)


def floats(tensor: RawTensor) -> Floats:
    """Return a tensor of scales with its shape. Raises `OperatorError` where a scale is no number."""
    values = as_float32(tensor)
    if not np.isfinite(values).all():
        raise OperatorError(f"tensor {tensor.name} holds scales that are not finite; fetch the checkpoint again")
    return values.reshape(tensor.shape)


def row_scales(tensor: RawTensor, rows: int, groups: int) -> Floats:
    """Return the scales of `scale_part` as [rows, groups]."""
    return np.broadcast_to(floats(tensor).reshape(-1, groups), (rows, groups))


def zero_points(stored: Stored, tensor: RawTensor, codes: Codes) -> Floats | None:
    """Return zero points [rows, groups]; None if all are in the middle, as the configuration says. Raises
    `OperatorError` if it says so and they are not."""
    if not stored.symmetric:
        return codes.astype(np.float32)
    if (codes != 1 << (stored.bits - 1)).any():
        raise OperatorError(
            f"tensor {tensor.name} holds zero points, but the configuration says that the weights are symmetric; "
            "fetch the checkpoint again"
        )
    return None


def group_count(columns: int, group: int) -> int:
    """Return the number of groups in a row; a group of 0 is the whole row."""
    return -(-columns // group) if group else 1


def whole_group(columns: int, group: int) -> int:
    """Return the columns per scale, a multiple of every native group if the row has one scale."""
    return group or -(-columns // 128) * 128
