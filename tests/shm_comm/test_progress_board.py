"""The progress board: what teams show there, and what it does to ranks that wait for each other."""

import ctypes
import os
import threading
import time
from collections.abc import Iterator

import pytest
from numaserve.kernels import Team, barrier_ns, evict
from numaserve.shm_comm import Progress, Ring, RingAborted, RingDeadline, RingError
from numaserve.shm_comm._ring import format_progress, progress_bytes
from numaserve.shm_comm.progress_board import ProgressBoard, create_progress_board
from numaserve.shm_comm.segment import create_segment

DEADLINE_S = 0.2
# Byte offsets, written here a second time on purpose: the layout is a contract.
VERSION = 8


@pytest.fixture
def board() -> Iterator[ProgressBoard]:
    made = create_progress_board(2)
    yield made
    made.close()


def test_a_team_counts_its_barriers_in_the_part_of_its_rank(board: ProgressBoard) -> None:
    team = Team([-1, -1], Progress(board.fd, board.nonce), rank=1)
    before = board.barriers(1)
    barrier_ns(team)
    assert board.barriers(1) > before + 100
    assert board.barriers(0) == 0


@pytest.fixture
def _any_core() -> Iterator[None]:
    """A team pins the thread that makes it."""
    allowed = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, allowed)


@pytest.mark.usefixtures("_any_core")
def test_only_a_thread_that_waits_is_marked(board: ProgressBoard) -> None:
    """Both threads have one core: the first one waits until the other one has run."""
    team = Team([min(os.sched_getaffinity(0))] * 2, Progress(board.fd, board.nonce), rank=0)
    memory = ctypes.create_string_buffer(64)
    seen: set[int] = set()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            seen.update(board.waiting(0, 2))
            time.sleep(0)

    watcher = threading.Thread(target=look)
    watcher.start()
    while not seen:
        evict(team, [(ctypes.addressof(memory), 64)])
    over.set()
    watcher.join()
    assert os.getpid() in seen
    while board.waiting(0, 2):  # the other one has not seen the end of the run yet
        time.sleep(0.001)
    assert board.waiting(1, 2) == frozenset()


@pytest.mark.parametrize("shares_cores", [False, True])
@pytest.mark.parametrize("ends", ["an abort", "the end of the front end"])
def test_a_judged_rank_waits_beyond_its_deadline(shares_cores: bool, ends: str) -> None:
    lifeline, front_end = os.pipe()
    with create_segment(2, lanes=1, slot_bytes=4096) as segment:
        ring = Ring(segment.fd, 0, segment.nonce)
        if shares_cores:
            ring.share_cores()
        ring.leave_verdict(lifeline)
        ring.set_deadline(DEADLINE_S)
        errors: list[RingError] = []

        def meet() -> None:
            try:
                ring.barrier()
            except RingError as error:
                errors.append(error)

        waits = threading.Thread(target=meet)
        waits.start()
        waits.join(3 * DEADLINE_S)
        assert waits.is_alive()
        if ends == "an abort":
            segment.abort("a rank hangs")
        os.close(front_end)
        waits.join()
    os.close(lifeline)
    assert [type(error) for error in errors] == [RingAborted if ends == "an abort" else RingDeadline]


def test_memory_that_is_no_board_of_this_launch_is_refused(board: ProgressBoard) -> None:
    with pytest.raises(RingError, match="wrong nonce"):
        Progress(board.fd, board.nonce + 1)
    with create_segment(2, lanes=1, slot_bytes=4096) as segment, pytest.raises(RingError, match="magic"):
        Progress(segment.fd, board.nonce)
    with pytest.raises(RingError, match="does not match"):
        format_progress(board.fd, 3, 1)
    with pytest.raises(RingError, match="from 1 to 64"):
        progress_bytes(65)
    os.pwrite(board.fd, (3).to_bytes(4, "little"), VERSION)
    with pytest.raises(RingError, match="version 3, but this build needs version 2"):
        Progress(board.fd, board.nonce)


def test_a_rank_that_the_board_does_not_have_is_refused(board: ProgressBoard) -> None:
    end = Progress(board.fd, board.nonce)
    for rank in (-1, 2):
        with pytest.raises(IndexError, match="out of range"):
            end.barriers(rank)
        with pytest.raises(IndexError, match="out of range"):
            end.waiting(rank, 1)
        with pytest.raises(IndexError, match="out of range"):
            Team([-1], end, rank)
    assert end.world_size == 2
