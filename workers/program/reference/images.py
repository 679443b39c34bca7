"""The image input of a program: the features that a step's plan places, and whole tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from numaserve.workers.program.ops.base import Operation
from numaserve.workers.program.ops.images import Merging, PlaceRows

# Index of the sequence in the plan, the first of some positions, their number, and the first row of the pool.
PlacedTuple = tuple[int, int, int, int]


class ImageRows(NamedTuple):
    """The rows of a program's feature pool, and the rows of a tile where each sequence is one, or `many`. A step has
    one tile where these rows are not only `patches`."""

    pool: int = 0
    tile: int = 0
    patches: int = 0
    many: bool = False

    @classmethod
    def of(cls, operations: Sequence[Operation]) -> ImageRows:
        """Return the rows of a program of `operations`."""
        pools = (each.pool.rows for each in operations if isinstance(each, PlaceRows))
        tiles = ((each.tile, each.side**2, each.many) for each in operations if isinstance(each, Merging))
        return cls(next(pools, 0), *next(tiles, (0, 0, False)))


NO_IMAGES = ImageRows()


def coordinates(grids: Sequence[int], position: int) -> tuple[int, int, int]:
    """Return the rotary coordinates of a position of a sequence whose images have these `grids`; see `SlotInit`.

    Those of a text token are equal. Rows of an image at `at` have (at, at + row, at + column), and the coordinate after
    it is `at` plus the longer side of its grid.
    """
    behind = 0
    for first, height, width in zip(grids[::3], grids[1::3], grids[2::3], strict=True):
        if position < first:
            break
        row, column = divmod(position - first, width)
        if row < height:
            return first - behind, first - behind + row, first - behind + column
        behind += height * width - max(height, width)
    return position - behind, position - behind, position - behind


def image_end(grids: Sequence[int], position: int) -> int:
    """Return the position after the last row of the image that has a row at `position`; 0 for a position of no
    image."""
    for first, height, width in zip(grids[::3], grids[1::3], grids[2::3], strict=True):
        if first <= position < first + height * width:
            return first + height * width
    return 0


def feature_rows(sequences: Sequence[Sequence[int]], placed: Sequence[PlacedTuple], pool_rows: int) -> dict[int, int]:
    """Return the row of the pool for each row of a step of sequences (slot, start, count, ...) that takes one.

    Raises `ValueError` for positions that are not among the new tokens, rows that are not in the pool, or a token that
    is named twice.
    """
    found: dict[int, int] = {}
    for index, start, count, row in placed:
        if not 0 <= index < len(sequences):
            raise ValueError("the step places image features in a sequence that is not in it")
        number, first, length = sequences[index][:3]
        named = f"slot {number} of the step"
        if count <= 0 or start < first or start + count > first + length:
            raise ValueError(f"{named} has image features at positions that are not among its new tokens")
        if row < 0 or row + count > pool_rows:
            raise ValueError(f"{named} has image features that are not in the pool of {pool_rows} rows")
        begin = sum(each[2] for each in sequences[:index]) + start - first
        own = dict(zip(range(begin, begin + count), range(row, row + count), strict=True))
        if found.keys() & own.keys():
            raise ValueError(f"{named} has two image features for one token")
        found |= own
    return found
