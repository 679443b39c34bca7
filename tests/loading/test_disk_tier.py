"""The disk tier of a rank over memory of a test: its records, and files that fail."""

import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numaserve.workers.interface.protocol import (
    CancelMove,
    DiskReady,
    DiskRecord,
    FromDisk,
    ReadRecords,
    RecordsMoved,
    WriteRecords,
)
from numaserve.workers.kv_disk.files import DirectFile
from numaserve.workers.kv_disk.memory import CacheMemory, Pieces, TailMemory
from numaserve.workers.kv_disk.records import HEADER_BYTES
from numaserve.workers.kv_disk.threads import Rests
from numaserve.workers.kv_disk.tier import DiskTier

PAGES, SNAPSHOTS, TAIL_PAGES = 24, 4, 10
PATIENCE_S = 60


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
        self._woken = threading.Event()
        self._requests = iter(range(1 << 20))
        self.tier = DiskTier(
            0,
            folder,
            self.memory.cache,
            cpus=[],
            steps=lambda: 0,
            wake=self._woken.set,
            open_file=self.shim.open,
        )
        self.ready = self.answer()

    def close(self) -> None:
        self.tier.close()
        for file in self.shim.opened:
            file.close()

    def answer(self) -> FromDisk:
        end = time.monotonic() + PATIENCE_S
        while not (answers := self.tier.answers()):
            assert self._woken.wait(end - time.monotonic())
            self._woken.clear()
        (answer,) = answers
        return answer

    def write(self, records: list[DiskRecord]) -> RecordsMoved:
        self.tier.begin(WriteRecords(next(self._requests), records))
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


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    rank = Rank(tmp_path)
    assert isinstance(rank.ready, DiskReady)
    assert rank.ready.problem == ""
    yield rank
    rank.close()


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def pages(first: int, count: int, *, slot: int = 0, step: int = 1) -> list[DiskRecord]:
    """Records of consecutive pages, whose contents are called by their slots."""
    slots = range(slot, slot + step * count, step)
    return [DiskRecord(each, digest(f"page {each}"), page=first + n) for n, each in enumerate(slots)]


def anchor(snapshot: int, tail: list[int]) -> DiskRecord:
    return DiskRecord(3, digest("anchor"), snapshot=snapshot, tails=[tail])


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))
        os.fsync(file.fileno())


def test_records_come_back_to_other_memory_and_change_nothing_else(rank: Rank) -> None:
    written = [*pages(2, 5, slot=7), *pages(0, 2, slot=40), anchor(1, [9, 0])]
    assert rank.write(written).done == len(written)
    back = [*pages(12, 5, slot=7), *pages(20, 2, slot=40), anchor(3, [4, 5])]
    expected = Memory()
    for layer in expected.pages:
        layer[12:17], layer[20:22] = layer[2:7].copy(), layer[:2].copy()
    for layer in expected.snapshots:
        layer[3] = layer[1]
    expected.tail[0][[4, 5]] = expected.tail[0][[9, 0]]
    answer = rank.read(back)
    assert (answer.done, answer.problem) == (len(back), "")
    assert answer.nbytes == sum(each.stat().st_blocks * 512 for each in rank.folder.iterdir())
    assert rank.memory.all() == expected.all()
    assert {(each.name, oct(each.stat().st_mode)) for each in rank.folder.iterdir()} == {
        ("rank-0.pages", "0o100600"),
        ("rank-0.anchors", "0o100600"),
    }


def test_neighbours_are_read_at_once_up_to_a_mebibyte(rank: Rank) -> None:
    rank.write(pages(0, PAGES))
    assert isinstance(rank.ready, DiskReady)
    rank.shim.reads.clear()
    rank.read([*pages(0, PAGES // 2), *pages(PAGES // 2, 3, slot=1, step=2)])
    assert sorted(rank.shim.reads) == [rank.ready.page_bytes * n for n in (1, 1, 1, PAGES // 2)]


def test_every_flipped_bit_is_a_miss_from_its_record_on(rank: Rank) -> None:
    assert isinstance(rank.ready, DiskReady)
    size, payload = rank.ready.page_bytes, rank.memory.cache.page_bytes
    for offset in (0, 8, 16, 24, 32, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + payload - 1):
        rank.write(pages(0, 4))
        flip(rank.folder / "rank-0.pages", 2 * size + offset)
        before = rank.memory.pages[0][[12, 13]].copy()
        answer = rank.read(pages(10, 4))
        assert (answer.done, answer.problem, answer.nbytes) == (2, "checksum", 2 * size), offset
        assert (rank.memory.pages[0][[12, 13]] == before).all()


def test_a_record_of_another_prefix_is_told_from_a_damaged_one(rank: Rank) -> None:
    rank.write(pages(0, 3))
    other = DiskRecord(1, digest("other"), page=20)
    assert rank.write([other]).done == 1
    answer = rank.read(pages(10, 3))
    assert (answer.done, answer.problem) == (1, "replaced")
    rank.write([anchor(0, [1, 2])])
    assert rank.read([anchor(0, [1])]).problem == "replaced"  # with as much as another plan would want


def test_a_file_that_ends_too_early_is_short(rank: Rank) -> None:
    assert isinstance(rank.ready, DiskReady)
    rank.write(pages(0, 4))
    os.truncate(rank.folder / "rank-0.pages", 2 * rank.ready.page_bytes + 4096)
    answer = rank.read(pages(10, 4))
    assert (answer.done, answer.problem) == (2, "short")


def _fails(error: int, at: int) -> Callable[[memoryview, int], int | None]:
    def fail(_: memoryview, offset: int) -> None:
        if offset >= at:
            raise OSError(error, os.strerror(error))

    return fail


@pytest.mark.parametrize(
    ("error", "problem"), [(errno.EIO, "io"), (errno.ENOSPC, "full"), (errno.EDQUOT, "full"), (0, "short")]
)
def test_what_a_disk_does_not_take_is_told(rank: Rank, error: int, problem: str) -> None:
    assert isinstance(rank.ready, DiskReady)
    size = rank.ready.page_bytes
    last = 4 * size  # every second slot: no record is moved with another
    rank.shim.on_write = _fails(error, last) if error else (lambda _, offset: 4096 if offset >= last else None)
    answer = rank.write(pages(0, 4, step=2))
    assert (answer.done, answer.problem, answer.nbytes) == (2, problem, 2 * size)
    assert answer.message == (os.strerror(error) if error else "")
    rank.shim.on_write = lambda data, offset: None
    assert rank.write(pages(0, 4, step=2)).done == 4


def test_nothing_counts_that_was_not_synced(rank: Rank) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    rank.shim.on_sync = fail
    answer = rank.write(pages(0, 3))
    assert (answer.done, answer.problem, answer.nbytes) == (0, "io", 0)


def test_a_disk_that_cannot_read_is_told(rank: Rank) -> None:
    assert isinstance(rank.ready, DiskReady)
    rank.write(pages(0, 3, step=2))
    rank.shim.on_read = _fails(errno.EIO, 2 * rank.ready.page_bytes)
    answer = rank.read(pages(10, 3, step=2))
    assert (answer.done, answer.problem, answer.message) == (1, "io", os.strerror(errno.EIO))


def test_a_read_that_hangs_is_cancelled_at_once_and_changes_nothing_later(rank: Rank) -> None:
    assert isinstance(rank.ready, DiskReady)
    rank.write(pages(0, 4, step=2))
    hang, hangs, went_on = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)
    first = 2 * rank.ready.page_bytes

    def wait(_: memoryview, offset: int) -> None:
        if offset >= first:
            hangs.release()
            assert hang.wait(PATIENCE_S)
            went_on.release()

    rank.shim.on_read = wait
    number = rank.begin_read(pages(10, 4, step=2))
    for _ in range(3):
        assert hangs.acquire(timeout=PATIENCE_S)
    end = time.monotonic() + PATIENCE_S
    while rank.memory.of(pages(10, 1)[0]) != rank.memory.of(pages(0, 1)[0]):
        assert time.monotonic() < end
    rank.tier.begin(CancelMove(number + 1))  # of nothing
    rank.tier.begin(CancelMove(number))
    assert [(each.done, each.problem) for each in rank.tier.answers() if isinstance(each, RecordsMoved)] == [
        (1, "cancelled")
    ]
    # A thread is left for another read, of a record that does not hang.
    assert rank.read(pages(20, 1)).done == 1
    before = rank.memory.all()
    hang.set()
    for _ in range(3):
        assert went_on.acquire(timeout=PATIENCE_S)
    rank.shim.on_read = lambda into, offset: None
    for _ in range(8):  # by all threads, after what they hung in
        assert rank.read(pages(20, 1)).done == 1
    assert rank.memory.all() == before
    assert rank.tier.answers() == []


BAD = {
    "slot": DiskRecord(-1, digest("a"), page=0),
    "far slot": DiskRecord(1 << 60, digest("a"), page=0),
    "digest": DiskRecord(0, b"short", page=0),
    "page": DiskRecord(0, digest("a"), page=PAGES),
    "snapshot": DiskRecord(0, digest("a"), snapshot=SNAPSHOTS, tails=[[0]]),
    "no snapshot": DiskRecord(0, digest("a"), tails=[[0]]),
    "no tail": DiskRecord(0, digest("a"), snapshot=0),
    "two tails": DiskRecord(0, digest("a"), snapshot=0, tails=[[0], [0]]),
    "long tail": DiskRecord(0, digest("a"), snapshot=0, tails=[[0, 1, 2, 3]]),
    "page of a tail": DiskRecord(0, digest("a"), snapshot=0, tails=[[-1]]),
}


def test_records_of_memory_that_is_not_there_are_refused(rank: Rank) -> None:
    rank.write(pages(0, 1))
    before = rank.memory.all()
    for name, record in BAD.items():
        for answer in (rank.read([*pages(1, 1), record]), rank.write([*pages(1, 1), record])):
            assert (answer.done, answer.problem) == (0, "io"), name
            assert answer.message, name
    assert rank.memory.all() == before
    assert rank.read([]).problem == ""


def test_a_file_system_without_direct_io_is_used_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return system(path, flags, mode)

    monkeypatch.setattr("numaserve.workers.kv_disk.files.os.open", refuse)
    rank = Rank(tmp_path)
    assert rank.write(pages(0, 3)).done == 3
    assert rank.read(pages(10, 3)).done == 3
    assert rank.memory.of(pages(10, 3)[2]) == rank.memory.of(pages(0, 3)[2])
    rank.close()


def test_files_that_cannot_be_opened_are_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0.pages")
    for folder, word in ((tmp_path, "regular"), (tmp_path / "none", "No such file")):
        rank = Rank(folder)
        assert isinstance(rank.ready, DiskReady)
        assert word in rank.ready.problem
        assert rank.read(pages(0, 1)).problem == "io"
        rank.close()


def test_states_without_snapshots_are_told(tmp_path: Path) -> None:
    rank = Rank(tmp_path, snapshots=0)
    assert isinstance(rank.ready, DiskReady)
    assert "snapshots" in rank.ready.problem
    assert list(tmp_path.iterdir()) == []
    rank.close()


def test_a_writer_rests_while_steps_run(monkeypatch: pytest.MonkeyPatch) -> None:
    rests_taken: list[float] = []
    monkeypatch.setattr("numaserve.workers.kv_disk.threads.time.sleep", rests_taken.append)
    steps = iter([0, 0, 3, 3, 4])
    rests = Rests(lambda: next(steps))
    counts = []
    for _ in range(4):
        rests()
        counts.append(len(rests_taken))
    assert counts == [0, 1, 1, 2]
