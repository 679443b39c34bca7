"""Disks that are full, fail or hang."""

import errno
import os
import threading
import time
from collections.abc import Callable

import pytest
from disk_rank import Rank, pages
from numaserve.workers.interface.protocol import CancelMove, RecordsMoved
from numaserve.workers.kv_disk.threads import Rests

from tests.support.disk_answers import PATIENCE_S


def test_a_file_that_ends_too_early_is_short(rank: Rank) -> None:
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
    rank.write(pages(0, 3, step=2))
    rank.shim.on_read = _fails(errno.EIO, 2 * rank.ready.page_bytes)
    answer = rank.read(pages(10, 3, step=2))
    assert (answer.done, answer.problem, answer.message) == (1, "io", os.strerror(errno.EIO))


def test_a_read_that_hangs_is_cancelled_at_once_and_changes_nothing_later(rank: Rank) -> None:
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


def test_a_write_that_hangs_is_cancelled_at_once_and_copies_no_page_later(rank: Rank) -> None:
    hang, hangs = threading.Event(), threading.Semaphore(0)

    def wait(_: memoryview, offset: int) -> None:
        hangs.release()
        assert hang.wait(PATIENCE_S)

    rank.shim.on_write = wait
    number = rank.begin_write(pages(0, 3, step=2))
    assert hangs.acquire(timeout=PATIENCE_S)
    rank.tier.begin(CancelMove(number))
    assert [(each.done, each.problem) for each in rank.tier.answers() if isinstance(each, RecordsMoved)] == [
        (0, "cancelled")
    ]
    hang.set()
    rank.shim.on_write = lambda data, offset: None
    assert rank.write(pages(5, 1, slot=1)).done == 1
    assert [rank.read(pages(10, 1, slot=slot)).done for slot in (0, 1, 2)] == [1, 1, 0]


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
