"""The places of image features in the memory of the workers.

The tower's run for a tile leaves feature rows in a place of each rank, and a chunk of a prompt takes rows from there.
Who holds what:

- A plan locks the places that its chunks read or its runs write, until it is answered. Another tile cannot take a
  locked place: the run for it may begin while the step before still reads. Each chunk names its own rows, so neither a
  sequence nor its slot holds a place. A sequence that waits, was retracted, or has ended holds nothing.
- Features are found from the plan on that makes them, since workers run plans in order, and by their scope and digest
  alone. After the answer they stay until another tile takes the place, least recently used first.
- Each plan in flight holds the tiles that its runs read, and with them the pixels in the image store. That a client
  leaves, or that the plan became void, changes nothing about what workers read.
- A run whose parts are spread over plans holds its place and its tile from the first part on. With the last part the
  place is the plan's, and the features are found. A run that is given up leaves its place free at once, though parts
  are in flight: the last part alone writes there.

A chunk is cut before the first tile that finds no place, and its sequence is planned again later. Nothing deadlocks:
where no plan is in flight the begun run alone has a locked place, so its next parts are planned, or the first chunk
finds a place, even in a pool of one.

A plan whose result does not come, because its step failed or the workers died, has perhaps made no features, and a
later one may have read what is not there. So the pool is emptied in both cases, and the runs are planned again with
the chunks. The workers of a failed step run the void plans that they have been sent before any later plan: what these
leave in a place is overwritten by the run that finds the pool empty.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.scheduler.images import Tile
from numaserve.server.scheduler.sequence import Sequence

FeatureKey = tuple[CacheScope, bytes]  # the digest of a tile, for the requests of a scope


@dataclass(eq=False, slots=True)
class BegunRun:
    """A run of the tower that has parts left to plan."""

    seq: Sequence  # that it was begun for
    key: FeatureKey
    tile: Tile
    place: int  # locked
    next_part: int = 0


class FeaturePool:
    """Finds the features of tiles, and gives places to new ones."""

    def __init__(self, places: int) -> None:
        self._num_places = places
        self._places: dict[FeatureKey, int] = {}
        self._keys: dict[int, FeatureKey] = {}  # of places with features
        self._locks: dict[int, int] = {}  # of places that are locked
        self._evictable: OrderedDict[int, None] = OrderedDict()  # the others with features, least recently used first
        self._free = list(range(places - 1, -1, -1))
        self.begun: BegunRun | None = None  # workers keep the intermediate values of one run
        self._made_in_parts: FeatureKey | None = None  # that no chunk has read yet
        self.hits = 0  # tiles of prompts whose features were found
        self.runs = 0  # of the tower

    @property
    def num_available(self) -> int:
        """The number of places that are not locked."""
        return self._num_places - len(self._locks)

    def __contains__(self, key: FeatureKey) -> bool:
        return key in self._places

    def is_locked(self, key: FeatureKey) -> bool:
        """Return whether features are found, in a place that is locked."""
        return self._places.get(key) in self._locks

    def find(self, key: FeatureKey) -> int | None:
        """Return the place of features, with one more lock; None where there are none."""
        place = self._places.get(key)
        if place is None:
            return None
        self._evictable.pop(place, None)
        self._locks[place] = self._locks.get(place, 0) + 1
        return place

    def take(self, key: FeatureKey) -> int:
        """Return a place for features that are not found, with one lock. There must be one `num_available`."""
        place = self._lock_any()
        self._made(key, place)
        return place

    def begin(self, seq: Sequence, key: FeatureKey, tile: Tile) -> BegunRun:
        """Begin a run in parts. No other one may be begun, and a place must be `num_available`."""
        self.begun = BegunRun(seq, key, tile, self._lock_any())
        return self.begun

    def complete(self, run: BegunRun) -> int:
        """Let the features of the begun run be found, since its last part is planned. Return its place, with the lock
        of the run."""
        self.begun, self._made_in_parts = None, run.key
        self._made(run.key, run.place)
        return run.place

    def give_up(self) -> None:
        """Forget the begun run, if there is one. It begins again at its first part."""
        if self.begun is not None:
            place, self.begun = self.begun.place, None
            self.unlock([place])

    def give_up_of(self, seq: Sequence) -> None:
        """Forget the begun run if it is that of a sequence, which has ended."""
        if self.begun is not None and self.begun.seq is seq:
            self.give_up()

    def count_hit(self, key: FeatureKey) -> None:
        """Count a tile of a prompt whose features are found, unless they were just made for it."""
        if key == self._made_in_parts:
            self._made_in_parts = None
        else:
            self.hits += 1

    def unlock(self, places: Iterable[int]) -> None:
        """Undo one lock of each place."""
        for place in places:
            self._locks[place] -= 1
            if not self._locks[place]:
                del self._locks[place]
                if place in self._keys:
                    self._evictable[place] = None
                else:
                    self._free.append(place)

    def forget(self, key: FeatureKey) -> None:
        """Let no later plan find features that may not be numbers."""
        place = self._places.pop(key, None)
        if place is not None:
            del self._keys[place]
            if place not in self._locks:
                del self._evictable[place]
                self._free.append(place)

    def flush(self) -> None:
        """Forget all features, locks and the begun run: the plans in flight are lost."""
        self.begun = self._made_in_parts = None
        self._places.clear()
        self._keys.clear()
        self._locks.clear()
        self._evictable.clear()
        self._free = list(range(self._num_places - 1, -1, -1))

    def _lock_any(self) -> int:
        """Return a place for new features, with one lock."""
        if self._free:
            place = self._free.pop()
        else:
            place, _ = self._evictable.popitem(last=False)
            del self._places[self._keys.pop(place)]
        self._locks[place] = 1
        return place

    def _made(self, key: FeatureKey, place: int) -> None:
        self._places[key], self._keys[place] = place, key
        self.runs += 1
