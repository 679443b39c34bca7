"""The origin of the rows of a packed matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numaserve.workers.layers.parameters import Rows
from numaserve.workers.program.handles import MATRIX_PAD, TILE_COLUMNS, TILE_ROWS, round_up

NO_ROW = -1


@dataclass(frozen=True)
class PackedRows:
    """For each row, int32: its part, and its row of the part's source; both are `NO_ROW` for padding."""

    parts: Rows
    rows: Rows

    def parts_in_panels(self, numbers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return the numbers of the parts that have rows in each panel of 16, in ascending order."""
        table = np.array([*numbers, NO_ROW], np.int32)  # the last one is that of padding
        panels = table[self.parts].reshape(-1, TILE_ROWS)
        return tuple(tuple(sorted(set(panel) - {NO_ROW})) for panel in panels.tolist())


def below(rows: Sequence[Rows]) -> PackedRows:
    """Return the origin of rows whose parts lie below each other."""
    parts = [np.full(len(each), index, np.int32) for index, each in enumerate(rows)]
    return PackedRows(*(padded(np.concatenate(each), MATRIX_PAD, NO_ROW) for each in (parts, rows)))


def dealt(rows: Sequence[Rows]) -> PackedRows:
    """Return the origin of rows whose parts take turns in panels, each padded to whole tiles."""
    parts = [np.full(len(each), index, np.int32) for index, each in enumerate(rows)]
    return PackedRows(in_panels(parts, NO_ROW), in_panels(rows, NO_ROW))


def in_panels(parts: Sequence[npt.NDArray[Any]], padding: int) -> npt.NDArray[Any]:
    """Return the values of parts in panels of 16 that take turns, each part padded to whole tiles."""
    panels = [padded(each, TILE_COLUMNS, padding).reshape(-1, 1, TILE_ROWS) for each in parts]
    return np.concatenate(panels, axis=1).reshape(-1)


def padded(values: npt.NDArray[Any], unit: int, padding: int) -> npt.NDArray[Any]:
    """Return `values` with `padding` after them up to a multiple of `unit`."""
    return np.pad(values, (0, round_up(len(values), unit) - len(values)), constant_values=padding)
