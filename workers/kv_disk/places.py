"""Where records are: in their file, and in the memory of the caches."""

from collections.abc import Sequence
from typing import NamedTuple

from numaserve.workers.interface.protocol import DiskRecord
from numaserve.workers.kv_disk.files import File
from numaserve.workers.kv_disk.memory import CacheMemory, MemoryRange, RecordError
from numaserve.workers.kv_disk.records import DIGEST_BYTES, record_bytes

_RUN_BYTES = 1 << 20  # neighbouring records are moved at once up to this size, where disks reach their bandwidth
_MOST_RECORDS = 1 << 32  # of a file; more would not fit in an offset


class RecordFile(NamedTuple):
    """A file of equal records."""

    file: File
    record_bytes: int


class Place(NamedTuple):
    """A record, and the memory that it is copied from or to."""

    record: DiskRecord
    ranges: list[MemoryRange]
    of: RecordFile

    @property
    def payload_bytes(self) -> int:
        """Bytes of the record's payload."""
        return sum(nbytes for _, nbytes in self.ranges)


class Run(NamedTuple):
    """Neighbouring records of a file, of which `first` is the number of the first one in its request."""

    first: int
    places: list[Place]

    @property
    def file(self) -> File:
        """The file of the records."""
        return self.places[0].of.file

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return len(self.places) * self.places[0].of.record_bytes

    @property
    def offset(self) -> int:
        """Offset of the first record in the file."""
        return self.places[0].record.slot * self.places[0].of.record_bytes

    def records(self, staged: memoryview) -> list[memoryview]:
        """Return the memory of each record in that of all."""
        size = self.places[0].of.record_bytes
        return [staged[begin : begin + size] for begin in range(0, self.nbytes, size)]

    def continues(self, place: Place) -> bool:
        """Whether a record comes after these, and may be moved with them."""
        last = self.places[-1]
        follows = place.of is last.of and place.record.slot == last.record.slot + 1
        return follows and self.nbytes + place.of.record_bytes <= _RUN_BYTES


def runs_of(places: Sequence[Place]) -> list[Run]:
    """Return the records of a request as runs, in order."""
    runs: list[Run] = []
    for number, place in enumerate(places):
        if runs and runs[-1].continues(place):
            runs[-1].places.append(place)
        else:
            runs.append(Run(number, [place]))
    return runs


class RecordFiles(NamedTuple):
    """The files of a rank, and the memory of their records."""

    memory: CacheMemory
    pages: RecordFile
    anchors: RecordFile | None  # None: every page is an anchor

    @classmethod
    def of(cls, memory: CacheMemory, pages: File, anchors: File | None) -> "RecordFiles":
        """Return the files with records of the sizes that the memory asks for."""
        of_anchors = None if anchors is None else RecordFile(anchors, record_bytes(memory.anchor_bytes))
        return cls(memory, RecordFile(pages, record_bytes(memory.page_bytes)), of_anchors)

    def places(self, records: Sequence[DiskRecord]) -> list[Place]:
        """Return the places of records. Raises `RecordError` for one that cannot be moved."""
        return [self._place(record) for record in records]

    def _place(self, record: DiskRecord) -> Place:
        file = self.anchors if record.is_anchor else self.pages
        if file is None:
            raise RecordError("the record is of an anchor, but pages alone continue a sequence of this model")
        if not 0 <= record.slot < _MOST_RECORDS:
            raise RecordError(f"the record has number {record.slot}; numbers are from 0 to {_MOST_RECORDS - 1}")
        if len(record.digest) != DIGEST_BYTES:
            raise RecordError(f"the record has a digest of {len(record.digest)} bytes, not of {DIGEST_BYTES}")
        return Place(record, self.memory.ranges(record), file)
