"""Looking into a live group from outside."""

import os
import subprocess
import sys

import pytest
from numaserve.shm_comm import RingError
from numaserve.shm_comm.segment import create_segment
from numaserve.shm_comm.stat import render, ring_stat
from rich.console import Console


def text_of(pid: int) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(render(pid))
    return capture.get()


def test_a_live_group_shows_its_pids_and_epochs_through_any_of_its_workers(start_group):
    group = start_group("endless", 2, deadline=3600.0)
    group.wait_until_running()
    before, after = (ring_stat(rank.pid) for rank in group.ranks)
    assert [rank.pid for rank in before.ranks] == [rank.pid for rank in group.ranks]
    assert (before.world_size, before.lanes, before.slot_bytes) == (2, 2, 16384)
    assert not before.aborted
    assert all(late.done_max >= early.done_max >= 1 for early, late in zip(before.ranks, after.ranks, strict=True))
    assert all(0 <= rank.wait_share <= 1 for rank in after.ranks)
    printed = text_of(group.ranks[0].pid)
    assert all(str(rank.pid) in printed for rank in group.ranks)
    assert "running" in printed


def test_an_aborted_group_shows_the_reason(start_group):
    group = start_group("endless", 2, deadline=3600.0)
    group.wait_until_running()
    group.segment.abort("rank 1 is out of memory")
    group.outputs()
    assert ring_stat(os.getpid()).aborted
    assert "aborted by the supervisor: rank 1 is out of memory" in text_of(os.getpid())


def test_a_rank_that_has_not_come_is_shown_as_not_attached():
    with create_segment(3, lanes=1, slot_bytes=4096):
        assert text_of(os.getpid()).count("not attached") == 3


def test_a_process_without_a_ring_is_an_error_that_says_what_to_do():
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process,
        pytest.raises(RingError, match="holds no ring; give the pid of"),
    ):
        ring_stat(process.pid)


def test_a_process_that_does_not_exist_is_an_error():
    with pytest.raises(RingError, match="no process has pid 2147483646"):
        ring_stat(2147483646)
