"""An LRU cache that owners share by bytes: no owner loses entries to an owner that holds more."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

# Overhead of an entry in bytes: its key, its byte count and its slots in the dictionaries.
ENTRY_BYTES = 512


class _Entry(NamedTuple, Generic[Value]):
    value: Value
    nbytes: int


class _Share(Generic[Key, Value]):
    """The entries of one owner, the least recently used first."""

    def __init__(self) -> None:
        self.entries: OrderedDict[Key, _Entry[Value]] = OrderedDict()
        self.nbytes = 0


class FairLru(Generic[Key, Value]):
    """An LRU cache of at most `max_bytes`. When full, the owner that holds most loses its least recently used entry.

    One LRU order for all owners was rejected: the owner that puts most would evict the entries of all others.
    """

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._shares: dict[bytes, _Share[Key, Value]] = {}
        self._owners: dict[Key, bytes] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def put(self, owner: bytes, key: Key, value: Value, nbytes: int) -> bool:
        """Store `value`, of `nbytes`, as the most recent entry of `owner`; no owner may have the `key` yet.

        Return False, and change nothing, if that would take bytes from owners that hold fewer.
        """
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
        """Return the value, and make it the most recent entry of its owner."""
        if key not in self._owners:
            return None
        entries = self._shares[self._owners[key]].entries
        entries.move_to_end(key)
        return entries[key].value

    def delete(self, key: Key) -> bool:
        """Remove the value; return False if there is none."""
        if key not in self._owners:
            return False
        owner = self._owners.pop(key)
        share = self._shares[owner]
        self._count(share, -share.entries.pop(key).nbytes)
        if not share.entries:
            del self._shares[owner]
        return True

    def _to_be_had(self, owner: bytes, nbytes: int) -> int:
        """Return the bytes that may be evicted for an entry: the owner's, and other owners' bytes beyond `nbytes`."""
        return sum(
            share.nbytes if each == owner else max(0, share.nbytes - nbytes) for each, share in self._shares.items()
        )

    def _count(self, share: _Share[Key, Value], nbytes: int) -> None:
        share.nbytes += nbytes
        self._left -= nbytes
