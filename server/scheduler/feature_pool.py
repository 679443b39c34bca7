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

A chunk is cut before the first tile that finds no place, and its sequence is planned again later. Nothing deadlocks:
where no plan is in flight no place is locked, so the first chunk finds one, even in a pool of one place.

A plan whose result does not come, because its step failed or the workers died, has perhaps made no features, and a
later one may have read what is not there. So the pool is emptied in both cases, and the runs are planned again with
the chunks. The workers of a failed step run the void plans that they have been sent before any later plan: what these
leave in a place is overwritten by the run that finds the pool empty.
"""

from collections import OrderedDict
from collections.abc import Iterable

from numaserve.server.scheduler.cache.scope import CacheScope

FeatureKey = tuple[CacheScope, bytes]  # the digest of a tile, for the requests of a scope


class FeaturePool:
    """Finds the features of tiles, and gives places to new ones."""

    def __init__(self, places: int) -> None:
        self._num_places = places
        self._places: dict[FeatureKey, int] = {}
        self._keys: dict[int, FeatureKey] = {}  # of places with features
        self._locks: dict[int, int] = {}  # of places that are locked
        self._evictable: OrderedDict[int, None] = OrderedDict()  # the others with features, least recently used first
        self._free = list(range(places - 1, -1, -1))
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
        self.runs += 1
        if self._free:
            place = self._free.pop()
        else:
            place, _ = self._evictable.popitem(last=False)
            del self._places[self._keys[place]]
        self._places[key], self._keys[place] = place, key
        self._locks[place] = 1
        return place

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
        """Forget all features and locks: the plans in flight are lost."""
        self._places.clear()
        self._keys.clear()
        self._locks.clear()
        self._evictable.clear()
        self._free = list(range(self._num_places - 1, -1, -1))
