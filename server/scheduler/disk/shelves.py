"""The directories of the disk tier with the sizes of their records."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from numaserve.server.scheduler.disk.changes import Added, Change, Cleared, Dropped, RecordKind, Used
from numaserve.server.scheduler.disk.directory import DiskDirectory, Entry


@dataclass(frozen=True)
class RecordSizes:
    """Bytes of a record in each rank's file."""

    pages: Sequence[int]
    anchors: Sequence[int]  # 0: every page is an anchor

    def of(self, rank: int, kind: RecordKind) -> int:
        """Return the bytes of a record of one kind in a rank's file; 0: the rank has none."""
        sizes = self.pages if kind == "pages" else self.anchors
        return sizes[rank] if rank < len(sizes) else 0


@dataclass(frozen=True)
class Directories:
    """The nodes on disk."""

    pages: DiskDirectory
    anchors: DiskDirectory


@dataclass(frozen=True)
class Shelf:
    """The records of one kind."""

    kind: RecordKind
    directory: DiskDirectory
    record_bytes: int  # in the file of the rank with the largest ones
    to_erase: list[int] = field(default_factory=list)  # slots of records that must not stay in the files

    def take_slot(self, changes: list[Change]) -> int | None:
        """Return a slot for a record; None: there is none. The record that it replaces is noted in `changes`."""
        taken = self.directory.take_slot()
        if taken is None:
            return None
        slot, evicted = taken
        if evicted is not None:
            changes.append(Dropped(self.kind, evicted))
        return slot

    def add(self, entry: Entry, changes: list[Change]) -> None:
        """Add a record that is on disk."""
        self.directory.add(entry)
        changes.append(Added(self.kind, entry))

    def drop(self, digest: bytes, changes: list[Change]) -> None:
        """Forget a record that cannot be read."""
        self.directory.drop(digest)
        changes.append(Dropped(self.kind, digest))

    def drop_groups(self, kept: Collection[str], changes: list[Change]) -> None:
        """Forget the records whose cache group is not `kept`, and have them erased."""
        self._erase(self.directory.drop_groups(kept), changes)

    def expire(self, before: int, changes: list[Change]) -> None:
        """Forget the records that were last used before a time, in unix seconds, and have them erased."""
        self._erase(self.directory.expire(before), changes)

    def use(self, digests: Sequence[bytes], now: int, changes: list[Change]) -> None:
        """Make the records of a path the most recently used ones."""
        self.directory.use(digests, now)
        changes.append(Used(self.kind, digests[-1], now))

    def has(self, digest: bytes) -> bool:
        """Return whether a record is on disk."""
        return self.directory.slot_of(digest) is not None

    def slots_of(self, digests: Iterable[bytes]) -> Iterator[int]:
        """Yield the slots of a path up to the first record that is not on disk."""
        for digest in digests:
            slot = self.directory.slot_of(digest)
            if slot is None:
                return
            yield slot

    def _erase(self, dropped: Iterable[tuple[int, bytes]], changes: list[Change]) -> None:
        for slot, digest in dropped:
            changes.append(Dropped(self.kind, digest))
            self.to_erase.append(slot)


@dataclass(frozen=True)
class Shelves:
    """The records of all kinds."""

    pages: Shelf
    anchors: Shelf | None  # None: every page is an anchor

    @property
    def all(self) -> list[Shelf]:
        """The records of each kind that the model has."""
        return [self.pages] if self.anchors is None else [self.pages, self.anchors]

    def of(self, kind: RecordKind) -> Shelf:
        """Return the shelf of a kind, of which there are records."""
        return self.pages if kind == "pages" or self.anchors is None else self.anchors

    def use(self, path: Sequence[bytes], now: int, changes: list[Change]) -> None:
        """Make the prefix with the digests `path` the most recently used one, as far as it is on disk."""
        on_disk = list(takewhile(self.pages.has, path))
        if on_disk:
            self.pages.use(on_disk, now, changes)
        if self.anchors is not None and path and self.anchors.has(path[-1]):
            self.anchors.use(path[-1:], now, changes)

    def clear(self, changes: list[Change]) -> None:
        """Forget all records."""
        for shelf in self.all:
            shelf.directory.clear()
        changes.append(Cleared())

    def deepest_anchor(self, digests: Sequence[bytes], after: int, until: int) -> int:
        """Return the depth of the deepest prefix after `after` pages, up to `until`, from which a sequence can begin;
        `after` if there is none. `digests` are those of the path."""
        if self.anchors is None:
            return until
        return next((depth for depth in range(until, after, -1) if self.anchors.has(digests[depth - 1])), after)
