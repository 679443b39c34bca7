"""The images of a prompt, as the scheduler knows them."""

from collections.abc import Sequence
from dataclasses import dataclass
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

    start: int  # position of the first row
    tile: Tile

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self.start + self.tile.features


def keys_of(tokens: Sequence[int], images: Sequence[PlacedTile], most: int) -> list[Key]:
    """Return the key of each position of a prompt, whose tiles have at most `most` feature rows each.

    Raises `ValueError` unless the tiles are ascending, apart from each other, and whole inside of the prompt.
    """
    keys: list[Key] = [*tokens]
    end = 0
    for start, tile in images:
        rows = tile.features
        if not 0 < rows <= most or not end <= start <= len(keys) - rows:
            raise ValueError(
                f"a tile at position {start} of {len(keys)} does not fit: it takes {rows} from {end} on, at most {most}"
            )
        end = start + rows
        keys[start:end] = [content_key(tile.digest, row) for row in range(rows)]
    return keys
