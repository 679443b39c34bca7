"""Rows that a program is given before a step and shows after it: how one program reads what another has made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numaserve.workers.program.buffers import Buffer
from numaserve.workers.program.cost import BF16
from numaserve.workers.program.ops.base import Operation
from numaserve.workers.program.ops.rows import Given, Keep

_NOTHING = (0, 0)


@dataclass(frozen=True)
class OutsideRows:
    """`given` is fp32 [tokens, columns], `kept` the bits of bf16 [tokens, columns], or fp32; empty where there are
    none."""

    given: npt.NDArray[np.float32]
    kept: npt.NDArray[Any]


def outside_rows(
    operations: Sequence[Operation], rows: Callable[[Buffer, npt.DTypeLike], npt.NDArray[Any]]
) -> OutsideRows:
    """Collect the buffers of a program of `operations`; `rows` finds the memory of a buffer."""
    given, kept = np.zeros(_NOTHING, np.float32), np.zeros(_NOTHING, np.uint16)  # numpy has no bf16
    for each in operations:
        if isinstance(each, Given):
            given = rows(each.out, given.dtype)
        elif isinstance(each, Keep):
            kept = rows(each.x, np.uint16 if each.x.itemsize == BF16 else np.float32)
    return OutsideRows(given, kept)
