"""Where records are: in their file, and in the memory of the caches."""

from collections.abc import Sequence
from typing import NamedTuple

from numaserve.workers.interface.protocol import DiskRecord
from numaserve.workers.kv_disk.files import File
from numaserve.workers.kv_disk.memory import CacheMemory, RecordError
from numaserve.workers.kv_disk.records import DIGEST_BYTES, record_bytes

_RUN_BYTES = 1 << 20  # neighbouring records are moved at once up to this size, where disks reach their bandwidth
_MOST_RECORDS = 1 << 32  # of a file; more would not fit in an offset


class RecordFile(NamedTuple):
    """A file of equal records."""

    file: File
    record_bytes: int


class Run(NamedTuple):
    """Neighbouring records of a file, of which `first` is the number of the first one in its request."""

    first: int
    records: list[DiskRecord]
    of: RecordFile

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return len(self.records) * self.of.record_bytes

    @property
    def offset(self) -> int:
        """Offset of the first record in the file."""
        return self.records[0].slot * self.of.record_bytes

    def parts(self, staged: memoryview) -> list[memoryview]:
        """Return the memory of each record in that of all."""
        size = self.of.record_bytes
        return [staged[begin : begin + size] for begin in range(0, self.nbytes, size)]


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

    def runs(self, records: Sequence[DiskRecord]) -> list[Run]:
        """Return the records of a request as runs, in order. Raises `RecordError` for one that cannot be moved."""
        # The thread that runs steps does this for all records of a request, so it has to be quick.
        runs: list[Run] = []
        run, end, most = None, -1, 0
        for number, record in enumerate(records):
            file = self._file_of(record)
            self.memory.check(record)
            if run is None or record.slot != end or run.of is not file or len(run.records) == most:
                run = Run(number, [], file)
                runs.append(run)
                most = max(1, _RUN_BYTES // file.record_bytes)
            run.records.append(record)
            end = record.slot + 1
        return runs

    def _file_of(self, record: DiskRecord) -> RecordFile:
        file = self.anchors if record.is_anchor else self.pages
        if file is None:
            raise RecordError("the record is of an anchor, but pages alone continue a sequence of this model")
        if not 0 <= record.slot < _MOST_RECORDS:
            raise RecordError(f"the record has number {record.slot}; numbers are from 0 to {_MOST_RECORDS - 1}")
        if len(record.digest) != DIGEST_BYTES:
            raise RecordError(f"the record has a digest of {len(record.digest)} bytes, not of {DIGEST_BYTES}")
        return file
