"""Columns that are quantized in an order other than their own: GPTQ's act-order.

The groups of the kernels are adjacent columns, and permuting the columns of a matrix would mean permuting the
activations too, at every step. The weights are therefore rounded again, to 8 bits, which loses far less than the 4 bits
have lost.
"""

import numpy as np
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.weights.quantized.coded import CodedTensor, Codes, Floats
from numaserve.workers.weights.quantized.parts import words
from numaserve.workers.weights.source import RawTensor


def by_column(name: str, codes: Codes, scales: Floats, zeros: Floats | float, index: RawTensor) -> CodedTensor:
    """Return weights scale * (code - zero), where `index` has the group of each column; each column is then a group.
    `zeros` are those of the groups, or one for all. Raises `OperatorError` for groups that do not exist."""
    groups = words(index)
    if (groups >= scales.shape[1]).any():
        raise OperatorError(f"tensor {index.name} names groups that do not exist; fetch the checkpoint again")
    scales = scales[:, groups]
    offsets = np.full_like(scales, zeros) if isinstance(zeros, float) else zeros[:, groups]
    return CodedTensor(name, "int8_group", codes, scales, 1, offsets)


def check_order(index: RawTensor, group: int) -> None:
    """Raises `OperatorError` if columns are out of order, which the plan did not account for."""
    if (words(index) != np.arange(index.shape[0]) // group).any():
        raise OperatorError(
            f"tensor {index.name} is in act-order, but the configuration does not set act-order; "
            "fetch the checkpoint again"
        )
