"""The disk tier of a rank over memory of a test, and files that fail."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numaserve.workers.interface.protocol import (
    DiskReady,
    DiskRecord,
    FromDisk,
    ReadRecords,
    RecordsMoved,
    WriteRecords,
)
from numaserve.workers.kv_disk.files import DirectFile
from numaserve.workers.kv_disk.memory import CacheMemory, Pieces, TailMemory
from numaserve.workers.kv_disk.tier import DiskTier

from tests.support.disk_answers import DiskAnswers

PAGES, SNAPSHOTS, TAIL_PAGES = 24, 4, 10


class Memory:
    """Caches of three layers with unequal pages, of a layer with snapshots, and of a window."""

    def __init__(self, snapshots: int = SNAPSHOTS) -> None:
        rng = np.random.default_rng(0)

        def layer(number: int, nbytes: int) -> np.ndarray:
            return rng.integers(0, 256, (number, nbytes), np.uint8)

        self.pages = [layer(PAGES, nbytes) for nbytes in (2048, 4096, 192)]
        self.snapshots = [layer(snapshots, nbytes) for nbytes in (5000, 640)]
        self.tail = [layer(TAIL_PAGES, 1024)]

    @property
    def cache(self) -> CacheMemory:
        def pieces(layers: list[np.ndarray]) -> list[Pieces]:
            return [Pieces.of((layer.ctypes.data, layer.nbytes), len(layer)) for layer in layers]

        return CacheMemory(pieces(self.pages), pieces(self.snapshots), [TailMemory(pieces(self.tail), 3)])

    def of(self, record: DiskRecord) -> list[bytes]:
        """The bytes of a record in memory."""
        if not record.is_anchor:
            return [layer[record.page].tobytes() for layer in self.pages]
        (tail,) = record.tails
        return [layer[record.snapshot].tobytes() for layer in self.snapshots] + [self.tail[0][tail].tobytes()]

    def all(self) -> list[bytes]:
        return [layer.tobytes() for layer in (*self.pages, *self.snapshots, *self.tail)]


class Shim:
    """A file that fails as its test says. The faults are those of all files that it opens, after the tier is ready."""

    def __init__(self) -> None:
        self.on_read: Callable[[memoryview, int], int | None] = lambda into, offset: None
        self.on_write: Callable[[memoryview, int], int | None] = lambda data, offset: None
        self.on_sync: Callable[[], None] = lambda: None
        self.reads: list[int] = []
        self.opened: list[DirectFile] = []

    def open(self, path: Path) -> DirectFile:
        self.opened.append(_Faulty(path, self))
        return self.opened[-1]


class _Faulty(DirectFile):
    def __init__(self, path: Path, shim: Shim) -> None:
        super().__init__(path)
        self._shim, self._is_closed = shim, False

    def read(self, into: memoryview, offset: int) -> int:
        count = super().read(into, offset)
        self._shim.reads.append(len(into))
        told = self._shim.on_read(into, offset)
        return count if told is None else told

    def write(self, data: memoryview, offset: int) -> int:
        told = self._shim.on_write(data, offset)
        return super().write(data, offset) if told is None else told

    def sync(self) -> None:
        super().sync()
        self._shim.on_sync()

    def close(self) -> None:
        if not self._is_closed:
            super().close()
        self._is_closed = True


class Rank:
    """A disk tier that is ready."""

    def __init__(self, folder: Path, snapshots: int = SNAPSHOTS) -> None:
        self.memory, self.shim, self.folder = Memory(snapshots), Shim(), folder
        self._answers = DiskAnswers()
        self._requests = iter(range(1 << 20))
        self.tier = DiskTier(
            0,
            folder,
            self.memory.cache,
            cpus=[],
            steps=lambda: 0,
            wake=self._answers.wake,
            open_file=self.shim.open,
        )
        ready = self.answer()
        assert isinstance(ready, DiskReady)
        self.ready = ready

    def close(self) -> None:
        self.tier.close()
        for file in self.shim.opened:
            file.close()

    def answer(self) -> FromDisk:
        return self._answers.next(self.tier)

    def begin_write(self, records: list[DiskRecord]) -> int:
        number = next(self._requests)
        self.tier.begin(WriteRecords(number, records))
        return number

    def write(self, records: list[DiskRecord]) -> RecordsMoved:
        self.begin_write(records)
        return self._moved()

    def begin_read(self, records: list[DiskRecord]) -> int:
        number = next(self._requests)
        self.tier.begin(ReadRecords(number, records))
        return number

    def read(self, records: list[DiskRecord]) -> RecordsMoved:
        self.begin_read(records)
        return self._moved()

    def _moved(self) -> RecordsMoved:
        answer = self.answer()
        assert isinstance(answer, RecordsMoved)
        return answer


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def pages(first: int, count: int, *, slot: int = 0, step: int = 1) -> list[DiskRecord]:
    """Records of consecutive pages, whose contents are called by their slots."""
    slots = range(slot, slot + step * count, step)
    return [DiskRecord(each, digest(f"page {each}"), page=first + n) for n, each in enumerate(slots)]


def anchor(snapshot: int, tail: list[int]) -> DiskRecord:
    return DiskRecord(3, digest("anchor"), snapshot=snapshot, tails=[tail])
