"""The images of a prompt, as the scheduler knows them."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from numaserve.server.scheduler.cache.keys import Key, content_key


@dataclass(frozen=True, eq=False)
class Tile:
    """A part of an image that is one run of the model's vision tower.

    Its pixels stay in the image store for as long as this object lives.
    """

    number: int  # in the image store
    digest: bytes  # SHA-256 of the pixels, of the grid and of the settings that they were made with
    rows: int  # of the grid of features
    cols: int

    @property
    def features(self) -> int:
        """The number of feature rows."""
        return self.rows * self.cols


class PlacedTile(NamedTuple):
    """A tile in a prompt. Each feature row of the tile stands at one position."""

    start: int  # position of the first feature row
    tile: Tile
    gap: int = 0  # tokens between two rows of the grid

    @property
    def end(self) -> int:
        """The position after the last feature row."""
        return self.start + self.tile.features + self.gap * (self.tile.rows - 1)

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the runs of feature rows at positions from `start` to `end`: the first position, the number of rows,
        and the first row."""
        tile = self.tile
        rows, cols = (tile.rows, tile.cols) if self.gap else (1, tile.features)
        for row in range(rows):
            at = self.start + row * (cols + self.gap)
            first, last = max(start, at), min(end, at + cols)
            if first < last:
                yield first, last - first, row * cols + first - at


def image_across(images: Sequence[PlacedTile], position: int) -> PlacedTile | None:
    """Return the image that has rows before `position` and from there on; None if there is none."""
    index = bisect_right(images, position, key=attrgetter("end"))
    found = images[index] if index < len(images) else None
    return found if found is not None and found.start < position else None


def outside_images(images: Sequence[PlacedTile], position: int, size: int) -> int:
    """Return the last end of a page of `size` tokens, at most `position`, that is within no image. `position` is the
    end of a page, too."""
    while (image := image_across(images, position)) is not None:
        position = image.start // size * size
    return position


def keys_of(tokens: Sequence[int], images: Sequence[PlacedTile], most: int) -> list[Key]:
    """Return the key of each position of a prompt, whose tiles have at most `most` feature rows each.

    Raises `ValueError` unless the tiles are ascending, apart from each other, and whole inside of the prompt.
    """
    keys: list[Key] = [*tokens]
    end = 0
    for placed in images:
        start, rows = placed.start, placed.tile.features
        if not 0 < rows <= most or not end <= start or placed.end > len(keys):
            raise ValueError(
                f"a tile at position {start} of {len(keys)} does not fit: it takes {placed.end - start} from {end} on,"
                f" with {rows} feature rows of at most {most}"
            )
        end = placed.end
        for first, count, _ in placed.runs(start, end):
            # By the place in the tile, gaps included: pages state where it begins.
            keys[first : first + count] = [content_key(placed.tile.digest, first - start + i) for i in range(count)]
    return keys
