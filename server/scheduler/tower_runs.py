"""The vision tower's part of a plan in the making."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from numaserve.server.scheduler.feature_pool import FeatureKey, FeaturePool
from numaserve.server.scheduler.images import PlacedTile, Tile
from numaserve.server.scheduler.sequence import Sequence
from numaserve.workers.interface.protocol import PlacedRows, TowerWork


class RunCost(NamedTuple):
    """The cost of a run of the tower."""

    seconds: float  # infinity before a run was observed
    tokens: float  # of prompts, that take as long; 0 while that is unknown


class Ahead(NamedTuple):
    """The tiles of the next positions of a sequence."""

    runs: list[int]  # the first position of each tile that needs a run, ascending
    end: int  # of the positions whose tiles find places


class TowerRuns:
    """The runs of the tower before a step, and the feature rows that the step's chunks take.

    A run is planned with the chunk that needs it: the sequence is then in the plan in which its tile may kill workers
    (see `Suspects`).
    """

    def __init__(self, pool: FeaturePool, rows_per_tile: int, cost: RunCost) -> None:
        """Begin a plan whose runs have this `cost` each."""
        self._pool = pool
        self._rows = rows_per_tile
        self._cost = cost
        self.works: list[TowerWork] = []
        self.placed: list[PlacedRows] = []
        self.tiles: list[Tile] = []  # of `works`
        self.places: list[int] = []  # locked

    def ahead(self, seq: Sequence, start: int, end: int) -> Ahead:
        """Return the tiles of a sequence among its positions from `start` to `end`."""
        runs: list[int] = []
        seen: set[FeatureKey] = set()
        available = self._pool.num_available
        for position, tile in self._among(seq, start, end):
            key = self.key(seq, tile)
            if key in seen or self._pool.is_locked(key):
                continue
            if len(seen) == available:
                return Ahead(runs, max(start, position))
            seen.add(key)
            if key not in self._pool:
                runs.append(max(start, position))
        return Ahead(runs, end)

    def key(self, seq: Sequence, tile: Tile) -> FeatureKey:
        """Return the key of a tile's features. Other scopes do not find them: no client must learn by the time of an
        answer what another one has sent."""
        return seq.request.scope, tile.digest

    def seconds(self, seq: Sequence, start: int, end: int) -> float:
        """Return the time of the planned runs, and of those for positions of `seq` from `start` to `end`."""
        runs = len(self.works)
        if seq.request.images:
            runs += len(self.ahead(seq, start, end).runs)
        return runs * self._cost.seconds if runs else 0.0

    def add(self, index: int, seq: Sequence, end: int) -> float:
        """Plan the rows of the positions of a sequence up to `end`, for which there are places, and the runs for them.
        `index` is that of the sequence in the plan. Return the number of prompt tokens that take as long as the runs.
        """
        before, start = len(self.works), seq.position.computed
        tiles = list(self._among(seq, start, end))
        keys = [self.key(seq, each.tile) for each in tiles]
        # All that are found first: a new one must not take their places.
        places = {key: place for key in dict.fromkeys(keys) if (place := self._pool.find(key)) is not None}
        for key, (position, tile) in zip(keys, tiles, strict=True):
            if key in places:
                self._pool.hits += position >= start
            else:
                places[key] = self._pool.take(key)
                self.works.append(TowerWork(tile.number, places[key]))
                self.tiles.append(tile)
            first, last = max(start, position), min(end, position + self._rows)
            row = places[key] * self._rows + first - position
            self.placed.append(PlacedRows(index, first, last - first, row))
        self.places += places.values()
        return (len(self.works) - before) * self._cost.tokens

    def _among(self, seq: Sequence, start: int, end: int) -> Iterator[PlacedTile]:
        """Yield the tiles that have rows at positions from `start` to `end`."""
        images = seq.request.images
        for index in range(bisect_right(images, start - self._rows, key=_start), len(images)):
            if images[index].start >= end:
                break
            yield images[index]


def _start(placed: PlacedTile) -> int:
    return placed.start
