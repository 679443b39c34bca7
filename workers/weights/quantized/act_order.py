"""Columns that are quantised in another order than they lie in: GPTQ's act-order.

The kernels' groups are neighbours, and permuting the columns of a matrix would mean permuting the activations too, at
every step: rounding the weights anew into 8 bits loses far less than the 4 bits have lost.
"""

from __future__ import annotations

import numpy as np
from numaserve.workers.errors import OperatorError
from numaserve.workers.models.stored import Stored
from numaserve.workers.weights.quantized.coded import CodedTensor, Codes, Floats, requantized
from numaserve.workers.weights.quantized.parts import words
from numaserve.workers.weights.source import RawTensor


def in_order(name: str, codes: Codes, scales: Floats, zeros: Floats | float, index: RawTensor) -> CodedTensor:
    """Weights scale * (code - zero), where `index` has the group of each column, rounded anew. `zeros` are those of
    the groups, or the one of all. Raises `OperatorError` for groups that are not there."""
    groups = words(index)
    if (groups >= scales.shape[1]).any():
        raise OperatorError(f"tensor {index.name} names groups that are not there; fetch the checkpoint again")
    values: Floats = codes.astype(np.float32)
    values -= np.float32(zeros) if isinstance(zeros, float) else zeros[:, groups]
    values *= scales[:, groups]
    return requantized(name, values)


def check_order(index: RawTensor, group: int) -> None:
    """Raises `OperatorError` where columns are out of order, which the plan did not know of."""
    if (words(index) != np.arange(index.shape[0]) // group).any():
        raise OperatorError(
            f"tensor {index.name} is out of order although the configuration names no act-order; "
            "fetch the checkpoint again"
        )


def file_group(stored: Stored) -> int:
    """Columns of a group in the file."""
    return stored.source_group if stored.reordered else stored.group
