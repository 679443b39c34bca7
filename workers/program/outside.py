"""Rows that a program is given before a step and shows after it: how one program reads what another has made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numaserve.workers.program.buffers import Buffer
from numaserve.workers.program.cost import BF16
from numaserve.workers.program.ops.base import Operation
from numaserve.workers.program.ops.rows import Given, Keep

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class OutsideRows:
    """The memory of a program's `Given` and `Keep` operations, by their names."""

    _given: Mapping[str, Rows]
    _kept: Mapping[str, Rows]

    def given(self, name: str) -> Rows:
        """Return the rows to fill in before a step: fp32 [tokens, columns], or of `Persistent` rows the bits of bf16.
        Raises `ValueError` for a name that the program is not given."""
        return _found("is given", name, self._given)

    def kept(self, name: str) -> Rows:
        """Return the rows to read after a step: the bits of bf16 [tokens, columns], or fp32. Raises `ValueError` for a
        name that the program does not keep."""
        return _found("keeps", name, self._kept)


def outside_rows(operations: Sequence[Operation], rows: Callable[[Buffer, npt.DTypeLike], Rows]) -> OutsideRows:
    """Collect the buffers of a program of `operations`; `rows` finds the memory of a buffer. Raises `ValueError` for a
    name that two of them have, and for rows that change after they are kept."""
    given: dict[str, Rows] = {}
    kept: dict[str, Rows] = {}
    for index, each in enumerate(operations, start=1):
        if isinstance(each, Given):
            _add("is given", each.name, given, rows(each.out, _dtype(each.out)))
        elif isinstance(each, Keep):
            if any(each.x.whole is buffer.whole for later in operations[index:] for buffer in later.writes):
                raise ValueError(f"the rows named {each.name!r} change after they are kept; keep them after that")
            _add("keeps", each.name, kept, rows(each.x, _dtype(each.x)))
    return OutsideRows(given, kept)


def _dtype(buffer: Buffer) -> npt.DTypeLike:
    """numpy has no bf16: its bits are read and written."""
    return np.uint16 if buffer.itemsize == BF16 else np.float32


def _add(verb: str, name: str, found: dict[str, Rows], rows: Rows) -> None:
    if name in found:
        raise ValueError(f"the program {verb} two matrices of rows named {name!r}; give each a name of its own")
    found[name] = rows


def _found(verb: str, name: str, among: Mapping[str, Rows]) -> Rows:
    if name not in among:
        names = ", ".join(map(repr, among)) or "none"
        raise ValueError(f"the program {verb} no rows named {name!r}; it {verb} {names}")
    return among[name]
