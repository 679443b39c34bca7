"""The inputs of a vision tower: what its Program is given for the pixels of a tile."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
from numaserve.workers.interface.protocol import TowerWork
from numaserve.workers.layers.any_size_tower import AnySizeTower
from numaserve.workers.layers.class_tower import ClassTower
from numaserve.workers.layers.grid_tower import ROTARY, TAPS, GridTower
from numaserve.workers.layers.patch_tower import PatchTower
from numaserve.workers.layers.pooled_tower import AXES, PooledTower
from numaserve.workers.layers.vision import PATCHES, TileTower, Tower
from numaserve.workers.program.outside import OutsideRows
from numaserve.workers.program.rope import rope_tables

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


class TowerInputs(ABC):
    """Fills in what a tower's Program is given."""

    @abstractmethod
    def sizes(self, work: TowerWork) -> tuple[int, int]:
        """Return the patches and the rows of features of a tile."""

    @abstractmethod
    def fill(self, pixels: Pixels, work: TowerWork) -> None:
        """Give the tower the values of a tile with `pixels`, uint8 [the most bytes of a tile]."""

    @abstractmethod
    def check(self, work: TowerWork) -> None:
        """Raise `ValueError` for a tile of a size that the tower does not take."""


class TileInputs(TowerInputs):
    """The inputs of a tower whose tiles are of one size."""

    def __init__(self, tower: TileTower, table: Floats, outside: OutsideRows) -> None:
        """`table` has the value of each byte of each channel, fp32 [3, 256]."""
        self._side, self._patch, self._tile, self._rows = tower.side, tower.patch, tower.tile, tower.features
        self._table, self._patches = table, outside.given(PATCHES)

    def sizes(self, work: TowerWork) -> tuple[int, int]:
        """See `TowerInputs`."""
        return self._side**2, self._rows

    def check(self, work: TowerWork) -> None:
        """See `TowerInputs`: there is one size."""

    def fill(self, pixels: Pixels, work: TowerWork) -> None:
        """See `TowerInputs`: values by channel, then row, then column."""
        side, patch = self._side, self._patch
        # A remainder is left out, as by a convolution.
        whole = pixels.reshape(self._tile, self._tile, -1)[: side * patch, : side * patch]
        channels = whole.reshape(side, patch, side, patch, -1).transpose(4, 0, 2, 1, 3)
        parts = np.split(self._patches, len(self._table), axis=1)
        # One lookup for all channels takes four times as long: numpy then has two indices for each value.
        for values, blocks, part in zip(self._table, channels, parts, strict=True):
            part[:] = values.take(blocks.reshape(side * side, -1))


class ClassInputs(TileInputs):
    """The inputs of a tower whose tiles have a class token after their patches."""

    def __init__(self, tower: ClassTower, table: Floats, outside: OutsideRows) -> None:
        """See `TileInputs`."""
        super().__init__(tower, table, outside)
        patches = tower.side**2
        self._class, self._patches = self._patches[patches:], self._patches[:patches]
        row, column = np.indices((tower.side, tower.side)).reshape(2, -1)
        # The first half of the pairs is rotated by the column, the second by the row.
        parts = [each[place] for each in rope_tables(tower.rope, tower.side) for place in (column, row)]
        self._turns, self._rotary = np.concatenate(parts, axis=1), outside.given(ROTARY)

    def sizes(self, work: TowerWork) -> tuple[int, int]:
        """See `TowerInputs`."""
        return self._side**2 + 1, self._rows

    def fill(self, pixels: Pixels, work: TowerWork) -> None:
        """See `TileInputs`. The class token has no pixels, and is not rotated."""
        super().fill(pixels, work)
        count, pairs = self._side**2, self._turns.shape[1] // 2
        self._class[:] = 0
        self._rotary[:count] = self._turns
        self._rotary[count:, :pairs], self._rotary[count:, pairs:] = 1, 0


class GridInputs(TowerInputs):
    """The inputs of a tower whose images have any number of rows and columns of squares."""

    _around = np.arange(2)  # of the table positions of an axis, from the one before a patch

    def __init__(self, tower: AnySizeTower, table: Floats, outside: OutsideRows) -> None:
        """`table` has the value of each byte of each channel, fp32 [3, 256]."""
        self._patch, self._factor, self._frames = tower.patch, tower.factor, tower.frames
        self._most, self._side, self._table = tower.features, tower.side, table
        halves = [rope_tables(rope, tower.features * tower.factor) for rope in tower.rotations]
        self._tables = tuple(zip(*halves, strict=True))  # cosines of both halves of the pairs, then sines
        self._columns_first = tower.columns_first
        self._patches, self._rotary = outside.given(PATCHES), outside.given(ROTARY) if halves else None
        self._taps = outside.given(TAPS) if tower.side else None

    def sizes(self, work: TowerWork) -> tuple[int, int]:
        """See `TowerInputs`."""
        rows = work.rows * work.cols
        return rows * self._factor**2, rows

    def check(self, work: TowerWork) -> None:
        """See `TowerInputs`."""
        if min(work.rows, work.cols) < 1 or work.rows * work.cols > self._most:
            raise ValueError(
                f"the step has an image of {work.rows} x {work.cols} features, but an image has at most {self._most}"
            )

    def fill(self, pixels: Pixels, work: TowerWork) -> None:
        """See `TowerInputs`: values by channel, then frame, then row, then column."""
        rows, cols, factor, patch = work.rows, work.cols, self._factor, self._patch
        count, values = rows * cols * factor**2, patch**2
        whole = pixels[: count * values * len(self._table)]
        squares = whole.reshape(rows, factor, patch, cols, factor, patch, -1).transpose(6, 0, 3, 1, 4, 2, 5)
        for channel, (table, blocks) in enumerate(zip(self._table, squares, strict=True)):
            found = table.take(blocks.reshape(count, values))
            for frame in range(self._frames):
                first = (channel * self._frames + frame) * values
                self._patches[:count, first : first + values] = found
        places = self._places(rows, cols)
        if self._rotary is not None:
            self._fill_rotary(self._rotary, places[::-1] if self._columns_first else places)
        if self._taps is not None:
            self._fill_taps(self._taps, places, rows * factor, cols * factor)

    def _places(self, rows: int, cols: int) -> tuple[Indices, Indices]:
        """Return the row and the column of each patch, in the order of squares."""
        factor = self._factor
        grid = np.indices((rows * factor, cols * factor)).reshape(2, rows, factor, cols, factor)
        row, column = grid.transpose(0, 1, 3, 2, 4).reshape(2, -1)
        return row, column

    def _fill_rotary(self, rotary: Floats, places: tuple[Indices, Indices]) -> None:
        parts = [table[place] for tables in self._tables for table, place in zip(tables, places, strict=True)]
        rotary[: len(places[0])] = np.concatenate(parts, axis=1)

    def _fill_taps(self, taps: Floats, places: tuple[Indices, Indices], height: int, width: int) -> None:
        """Interpolate between positions of a square table, in fp32 as transformers does
        (`get_vision_interpolation_indices_and_weights`)."""
        count = len(places[0])
        (rows, row_weights), (columns, column_weights) = (
            self._axis(place, size) for place, size in zip(places, (height, width), strict=True)
        )
        numbers = rows[:, :, None] * self._side + columns[:, None]
        weights = row_weights[:, :, None] * column_weights[:, None]
        number = len(self._around) ** 2
        taps.view(np.int32)[:count, :number] = numbers.reshape(count, -1)
        taps[:count, number:] = weights.reshape(count, -1)

    def _axis(self, place: Indices, size: int) -> tuple[Indices, Floats]:
        """Return the table positions around each patch on an axis of `size` patches, and their weights."""
        at = self._on_table(place.astype(np.float32), size)
        floor = np.floor(at)
        numbers = floor.astype(np.int64)[:, None] + self._around
        distance = np.abs(at[:, None] - floor[:, None] - self._around.astype(np.float32))
        return np.clip(numbers, 0, self._side - 1), self._weights(distance)

    def _weights(self, distance: Floats) -> Floats:
        """Return the weights of positions at a `distance` of a patch."""
        return np.clip(1 - distance, 0, None)

    def _on_table(self, place: Floats, size: int) -> Floats:
        """Return where the patches of an axis of `size` patches lie in the table."""
        return place * np.float32(self._side - 1) / np.float32(max(size - 1, 1))


class StretchedInputs(GridInputs):
    """The inputs of a tower whose table of positions is stretched over the image, edge to edge."""

    def _on_table(self, place: Floats, size: int) -> Floats:
        """See `GridInputs`: centres of patches, which lie half a patch from the edges."""
        half = np.float32(0.5)
        return (place + half) * np.float32(self._side) / np.float32(size) - half


class CubicInputs(StretchedInputs):
    """The same with cubic interpolation (Keys, 1981)."""

    _around = np.arange(-1, 3)

    def _weights(self, distance: Floats) -> Floats:
        """See `GridInputs`."""
        a = np.float32(-0.75)
        near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        return np.where(distance <= 1, near, far)


class AxisInputs(GridInputs):
    """The inputs of a tower that has a table of positions for columns, and one for rows."""

    def _fill_taps(self, taps: Floats, places: tuple[Indices, Indices], height: int, width: int) -> None:
        row, column = places
        count = len(row)
        taps.view(np.int32)[:count, :AXES] = np.stack([column, self._side + row], axis=1)
        taps[:count, AXES:] = 1.0


def make_inputs(tower: Tower, table: Floats, outside: OutsideRows) -> TowerInputs:
    """Return the inputs of a tower; `table` has the value of each byte of each channel, fp32 [3, 256]."""
    if isinstance(tower, GridTower):
        stretched = CubicInputs if tower.embedding.cubic else StretchedInputs
        kind = stretched if tower.embedding.stretched else GridInputs
        return kind(tower, table, outside)
    if isinstance(tower, PooledTower | PatchTower):
        return AxisInputs(tower, table, outside)
    if isinstance(tower, ClassTower):
        return ClassInputs(tower, table, outside)
    assert isinstance(tower, TileTower)  # noqa: S101  there are five kinds
    return TileInputs(tower, table, outside)
