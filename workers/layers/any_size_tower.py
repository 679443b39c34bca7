"""The parts that towers for images of any number of rows and columns of patches share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from numaserve.workers.layers.vision import Tower

if TYPE_CHECKING:
    from numaserve.workers.program.rope import RopeConfig


@dataclass(frozen=True)
class AnySizeTower(Tower):
    """A tower for images of any number of rows and columns of patches."""

    most: int = field(default=0, kw_only=True)  # features of an image

    @property
    def patches(self) -> int:
        """See `Tower`."""
        return self.most * self.factor**2

    @property
    def frames(self) -> int:
        """The times that the pixels of a patch are given."""
        return 1

    @property
    def side(self) -> int:
        """The positions of an axis of the image that a table has; 0 without a table."""
        return 0

    @property
    def rotations(self) -> tuple[RopeConfig, ...]:
        """The ropes of the first half of the pairs of a head and of the second half, by the row and the column of a
        patch, or with `columns_first` by the column and the row. Empty: patches are not rotated."""
        return ()

    @property
    def columns_first(self) -> bool:
        """See `rotations`."""
        return False

    def bounded(self, features: int) -> Self:
        """See `Tower`."""
        return replace(self, most=features)
