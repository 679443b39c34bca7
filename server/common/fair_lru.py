"""A cache that its owners share by bytes: no owner's entries go for the sake of one that holds more."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

# What an entry takes of itself: its key, what counts it, its place in the dictionaries.
ENTRY_BYTES = 512


class _Entry(NamedTuple, Generic[Value]):
    value: Value
    nbytes: int


class _Share(Generic[Key, Value]):
    """The entries of one owner, the least used first."""

    def __init__(self) -> None:
        self.entries: OrderedDict[Key, _Entry[Value]] = OrderedDict()
        self.nbytes = 0


class FairLru(Generic[Key, Value]):
    """Entries of at most `max_bytes` together. When they are full, the owner that holds most loses the least used one.

    One LRU for all owners was rejected: whoever puts most would evict what everybody else has.
    """

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._shares: dict[bytes, _Share[Key, Value]] = {}
        self._owners: dict[Key, bytes] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def put(self, owner: bytes, key: Key, value: Value, nbytes: int) -> bool:
        """Keep `value`, of `nbytes`, as the last of `owner`'s to go; no owner has the `key` yet. False where it would
        take bytes from owners that hold fewer: then nothing is kept and nothing goes."""
        entry = _Entry(value, nbytes + ENTRY_BYTES)
        if entry.nbytes > self._left + self._to_be_had(owner, entry.nbytes):
            return False
        self._owners[key] = owner
        share = self._shares.setdefault(owner, _Share())
        share.entries[key] = entry
        self._count(share, entry.nbytes)
        while self._left < 0:
            most = max(self._shares, key=lambda each: (self._shares[each].nbytes, each != owner))
            self.delete(next(iter(self._shares[most].entries)))
        return True

    def get(self, key: Key) -> Value | None:
        """Return the value, which is then the last of its owner's to go."""
        if key not in self._owners:
            return None
        entries = self._shares[self._owners[key]].entries
        entries.move_to_end(key)
        return entries[key].value

    def delete(self, key: Key) -> bool:
        """Forget the value; False where there is none."""
        if key not in self._owners:
            return False
        owner = self._owners.pop(key)
        share = self._shares[owner]
        self._count(share, -share.entries.pop(key).nbytes)
        if not share.entries:
            del self._shares[owner]
        return True

    def _to_be_had(self, owner: bytes, nbytes: int) -> int:
        """The bytes that may go for an entry: all of the owner's, and what others hold more than the entry takes."""
        return sum(
            share.nbytes if each == owner else max(0, share.nbytes - nbytes) for each, share in self._shares.items()
        )

    def _count(self, share: _Share[Key, Value], nbytes: int) -> None:
        share.nbytes += nbytes
        self._left -= nbytes
