"""The vision tower's part of a plan in the making."""

from bisect import bisect_right
from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from typing import NamedTuple

from numaserve.server.scheduler.feature_pool import FeatureKey, FeaturePool
from numaserve.server.scheduler.images import PlacedTile, Tile
from numaserve.server.scheduler.sequence import Sequence
from numaserve.workers.interface.protocol import PlacedRows, TowerWork


class RunCost(NamedTuple):
    """The cost of a run of the tower, for a tile with the most features if tiles differ. Other runs cost as much less
    as they have fewer features: attention makes them cheaper still."""

    seconds: float  # infinity before a run was observed
    tokens: float  # of prompts, that take as long; 0 while that is unknown
    parts: ListOf[float]  # the share of each
    overrun: float = 1.0  # of the time of a step with runs, or with rows of images, to the predicted one; see `Overrun`


class Ahead(NamedTuple):
    """The tiles of the next positions of a sequence."""

    runs: list[int]  # the first position of each tile that needs a run, ascending
    share: float  # of whole runs, of all these
    end: int  # of the positions whose tiles find places


class TowerRuns:
    """The runs of the tower before a step, and the feature rows that the step's chunks take.

    A run is planned whole, with the chunk that needs it, or in parts before that chunk. The plan names the sequence in
    both cases, in an entry or in `ends`: its tile may kill workers (see `Suspects`).
    """

    def __init__(self, pool: FeaturePool, rows_per_tile: int, cost: RunCost) -> None:
        """Begin a plan whose runs have this `cost` each."""
        self._pool = pool
        self._rows = rows_per_tile
        self.cost = cost
        self.works: list[TowerWork] = []
        self.placed: list[PlacedRows] = []
        self.tiles: list[Tile] = []  # of `works`
        self.places: list[int] = []  # locked
        self.share = 0.0  # of whole runs, in `works`
        self.ends: dict[Sequence, int] = {}  # of runs in parts: the position after the first that needs the features

    @property
    def planned_s(self) -> float:
        """The time of the planned runs."""
        return self._seconds(self.share)

    def ahead(self, seq: Sequence, start: int, end: int) -> Ahead:
        """Return the tiles of a sequence among its positions from `start` to `end`. No other run is possible before the
        last part of the begun one is planned."""
        runs: list[int] = []
        share = 0.0
        seen: set[FeatureKey] = set()
        available = self._pool.num_available
        for position, tile, _ in self._among(seq, start, end):
            key = self.key(seq, tile)
            if key in seen or self._pool.is_locked(key):
                continue
            is_found = key in self._pool
            if len(seen) == available or (self._pool.begun is not None and not is_found):
                return Ahead(runs, share, max(start, position))
            seen.add(key)
            if not is_found:
                runs.append(max(start, position))
                share += self._size(tile)
        return Ahead(runs, share, end)

    def key(self, seq: Sequence, tile: Tile) -> FeatureKey:
        """Return the key of a tile's features. Other scopes do not find them: no client must learn by the time of an
        answer what another one has sent."""
        return seq.request.scope.without_adapter, tile.digest

    def seconds(self, seq: Sequence, start: int, end: int) -> float:
        """Return the time of the planned runs, and of those for positions of `seq` from `start` to `end`."""
        share = self.share
        if seq.request.images:
            share += self.ahead(seq, start, end).share
        return self._seconds(share)

    def continues(self, seq: Sequence, start: int) -> bool:
        """Return whether the begun run is that for the position `start` of a sequence. It is given up where the
        sequence needs it no longer: others have computed positions that it shares with them."""
        begun = self._pool.begun
        if begun is None or begun.seq is not seq:
            return False
        if all(placed.tile is not begun.tile for placed in self._among(seq, start, start + 1)):
            self._pool.give_up()
        return self._pool.begun is not None

    def keep_begun(self, prompts: list[Sequence], newcomer: Sequence | None) -> None:
        """Give the begun run up unless its sequence still has the turn of a prompt: it must not keep others from
        theirs."""
        begun = self._pool.begun
        if begun is not None and begun.seq is not newcomer and begun.seq not in prompts:
            self._pool.give_up()

    def add_parts(self, seq: Sequence, start: int, seconds: float | None, *, least: int) -> float:
        """Plan the next parts of the run for the position `start` of a sequence, as many as take at most `seconds`
        (None: all), and not fewer than `least`. Return their share of a run."""
        begun, parts = self._pool.begun, self.cost.parts
        first = end = 0 if begun is None else begun.next_part
        tile = next(self._among(seq, start, start + 1)).tile if begun is None else begun.tile
        share, size = 0.0, self._size(tile)
        while end < len(parts):
            fits = seconds is None or (share + parts[end] * size) * self.cost.seconds <= seconds
            if not fits and end - first >= least:
                break
            share += parts[end] * size
            end += 1
        if end == first:
            return 0.0
        if begun is None:
            begun = self._pool.begin(seq, self.key(seq, tile), tile)
        begun.next_part = end
        self.works.append(self._work(tile, begun.place, first, end if end < len(parts) else 0))
        self.tiles.append(begun.tile)
        self.share += share
        self.ends[seq] = start + 1
        if end == len(parts):
            self.places.append(self._pool.complete(begun))
        return share

    def add(self, index: int, seq: Sequence, end: int) -> float:
        """Plan the rows of the positions of a sequence up to `end`, for which there are places, and the runs for them.
        `index` is that of the sequence in the plan. Return the number of prompt tokens that take as long as the runs.
        """
        before, start = self.share, seq.position.computed
        tiles = list(self._among(seq, start, end))
        keys = [self.key(seq, each.tile) for each in tiles]
        # All that are found first: a new one must not take their places.
        places = {key: place for key in dict.fromkeys(keys) if (place := self._pool.find(key)) is not None}
        for key, placed in zip(keys, tiles, strict=True):
            tile = placed.tile
            if key in places:
                if placed.start >= start:
                    self._pool.count_hit(key)
            else:
                places[key] = self._pool.take(key)
                self.works.append(self._work(tile, places[key]))
                self.tiles.append(tile)
                self.share += self._size(tile)
            for first, count, row in placed.runs(start, end):
                self.placed.append(PlacedRows(index, first, count, places[key] * self._rows + row))
        self.places += places.values()
        return (self.share - before) * self.cost.tokens

    def _work(self, tile: Tile, place: int, begin: int = 0, end: int = 0) -> TowerWork:
        return TowerWork(tile.number, place, begin, end, tile.rows, tile.cols)

    def _size(self, tile: Tile) -> float:
        """Return the size of a tile as a share of the largest one."""
        return tile.features / self._rows

    def _seconds(self, share: float) -> float:
        return share * self.cost.seconds if share else 0.0  # which may be infinite

    def _among(self, seq: Sequence, start: int, end: int) -> Iterator[PlacedTile]:
        """Yield the tiles that have rows at positions from `start` to `end`."""
        images = seq.request.images
        for index in range(bisect_right(images, start, key=_end), len(images)):
            if images[index].start >= end:
                break
            yield images[index]


def _end(placed: PlacedTile) -> int:
    return placed.end
