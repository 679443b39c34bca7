"""The directory of the disk tier: the prefixes on disk, and the slots of the files that hold them."""

import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from numaserve.server.scheduler.disk.recency import Recency

_NO_DIGEST = b""


class Entry(NamedTuple):
    """A node on disk."""

    slot: int  # number of its record in each rank's file
    digest: bytes  # of the prefix
    parent: bytes  # digest of the prefix without its last page; b"" below a root
    depth: int  # pages of the prefix
    group: str  # cache group; "" the common one
    used_at: int  # unix seconds


class DiskDirectory:
    """The nodes of one kind of record (pages or anchors) by digest, evicted least recently used first.

    A node comes before its parent in the order of eviction, and was not used later. So the first node is a leaf. A node
    whose parent was dropped is unreachable, and stays until it is the first one.

    A node takes about 200 bytes: the digest, its place in the dictionary, and one item in each column. An object for
    each node was rejected, which takes twice as much.
    """

    def __init__(self, num_slots: int, entries: Iterable[Entry] = ()) -> None:
        """Restore `entries`, in any order, with slots below `num_slots`. No two have the same slot or digest."""
        self.num_slots = num_slots
        self.on_removed: Callable[[int], None] | None = (
            None  # called with the slot of a node that is not on disk any more
        )
        self._slots: dict[bytes, int] = {}
        self._recency = Recency()
        self._now = 0  # the latest time of use
        self._free: list[int] = []  # that were used before
        # Columns, by slot. They grow with the slots that were handed out.
        self._digests: list[bytes] = []
        self._parents: list[bytes] = []
        self._groups: list[str] = []
        self._depths = array("i")
        self._used_at = array("q")
        self._restore(list(entries))

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._slots)

    def slot_of(self, digest: bytes) -> int | None:
        """Return the slot of a node; None: it is not on disk."""
        return self._slots.get(digest)

    def use(self, digests: Sequence[bytes], now: int) -> None:
        """Make the nodes of a path, root first, the most recently used ones. Raises `KeyError` for a missing node."""
        self._now = max(self._now, now)
        for digest in reversed(digests):
            slot = self._slots[digest]
            self._recency.move(slot)
            self._used_at[slot] = self._now

    def take_slot(self) -> tuple[int, bytes | None] | None:
        """Return a slot for a new node, and the digest of the node that was evicted for it, if any.

        None: all slots were handed out and not added yet.
        """
        if self._free:
            return self._free.pop(), None
        if len(self._digests) < self.num_slots:
            return self._grow(), None
        slot = self._recency.first
        if slot is None:
            return None
        evicted = self._digests[slot]
        self._remove(slot)
        return slot, evicted

    def give_back(self, slot: int) -> None:
        """Take back a slot that was handed out, and whose record could not be written, or was erased."""
        self._free.append(slot)

    def add(self, entry: Entry) -> None:
        """Add a node, whose slot came from `take_slot`. The nodes before it count as used at the same time.

        A node whose parent is missing is unreachable until the parent is added. Raises `ValueError` for a digest that
        is on disk already: its slot would be lost.
        """
        if entry.digest in self._slots:
            raise ValueError("disk tier: the node is on disk already")
        self._now = max(self._now, entry.used_at)
        self._fill(entry)
        # Nodes before it that were used earlier move with it. The first that was not keeps its place, and those before
        # it were used as late: a chain that is added node after node is walked up once.
        older, parent = [entry.slot], self._slots.get(entry.parent)
        while parent is not None and self._used_at[parent] < self._now:
            self._recency.remove(parent)
            older.append(parent)
            parent = self._slots.get(self._parents[parent])
        for slot in older:
            self._recency.insert(slot, before=parent)
            self._used_at[slot] = self._now

    def drop(self, digest: bytes) -> None:
        """Forget a node, if it is on disk. Its descendants are unreachable from now on, and evicted in time."""
        slot = self._slots.get(digest)
        if slot is not None:
            self._remove(slot)
            self._free.append(slot)

    def expire(self, before: int) -> list[tuple[int, bytes]]:
        """Forget the nodes that were last used before a time, in unix seconds.

        Returns their slots and digests. The slots are handed out: give them back when their records are erased.
        """
        dropped = []
        while (slot := self._recency.first) is not None and self._used_at[slot] < before:
            dropped.append((slot, self._digests[slot]))
            self._remove(slot)
        return dropped

    def drop_groups(self, kept: Collection[str]) -> list[tuple[int, bytes]]:
        """Forget the nodes whose cache group is not `kept`. Returns the same as `expire`."""
        dropped = [(slot, digest) for digest, slot in self._slots.items() if self._groups[slot] not in kept]
        for slot, _ in dropped:
            self._remove(slot)
        return dropped

    def clear(self) -> None:
        """Forget all nodes, without a call of `on_removed`. Slots that are handed out stay so."""
        self._free.extend(self._slots.values())
        self._slots = {}
        self._recency = Recency()
        self._digests = [_NO_DIGEST] * len(self._digests)
        self._parents = [_NO_DIGEST] * len(self._parents)
        self._groups = [""] * len(self._groups)

    def entries(self) -> Iterator[Entry]:
        """Yield all nodes, in no particular order. No node may be added or dropped meanwhile."""
        for digest, slot in self._slots.items():
            yield Entry(slot, digest, self._parents[slot], self._depths[slot], self._groups[slot], self._used_at[slot])

    def _restore(self, entries: list[Entry]) -> None:
        """Add entries and put them in order. A time of use may have been lost: a parent was used no earlier than its
        children."""
        last = max((entry.slot for entry in entries), default=-1)
        while len(self._digests) <= last:
            self._grow()
        # Sorted in groups: to sort a million entries would hold the interpreter's lock for half a second.
        by_depth: dict[int, list[Entry]] = {}
        for entry in entries:
            self._fill(entry)
            self._used_at[entry.slot] = entry.used_at
            by_depth.setdefault(entry.depth, []).append(entry)
        by_time: dict[int, list[int]] = {}
        for depth in sorted(by_depth, reverse=True):
            for entry in by_depth[depth]:  # after its children
                used_at = self._used_at[entry.slot]
                by_time.setdefault(used_at, []).append(entry.slot)
                parent = self._slots.get(entry.parent)
                if parent is not None:
                    self._parents[entry.slot] = self._digests[parent]  # one object for both
                    self._used_at[parent] = max(self._used_at[parent], used_at)
        for used_at in sorted(by_time):
            for slot in by_time[used_at]:
                self._recency.insert(slot)
            self._now = used_at
        self._free = [slot for slot in range(last, -1, -1) if not self._digests[slot]]

    def _grow(self) -> int:
        self._digests.append(_NO_DIGEST)
        self._parents.append(_NO_DIGEST)
        self._groups.append("")
        self._depths.append(0)
        self._used_at.append(0)
        return len(self._digests) - 1

    def _fill(self, entry: Entry) -> None:
        slot, parent = entry.slot, self._slots.get(entry.parent)
        self._slots[entry.digest] = slot
        self._digests[slot] = entry.digest
        self._parents[slot] = entry.parent if parent is None else self._digests[parent]  # one object for both
        self._groups[slot] = sys.intern(entry.group)
        self._depths[slot] = entry.depth

    def _remove(self, slot: int) -> None:
        self._recency.remove(slot)
        del self._slots[self._digests[slot]]
        self._digests[slot] = self._parents[slot] = _NO_DIGEST
        self._groups[slot] = ""
        if self.on_removed is not None:
            self.on_removed(slot)
