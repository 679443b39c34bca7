"""Ranks that are stopped and go on: a rank that was absent itself aborts nothing."""

import signal
import subprocess
import time

import psutil
from numaserve.shm_comm._ring import inspect


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGSTOP)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)


def progress(group) -> int:
    return min(rank.arrived_max for rank in inspect(group.segment.fd).ranks)


def test_a_group_that_is_stopped_as_a_whole_goes_on(start_group):
    group = start_group("endless", 2, deadline=1.5)
    group.wait_until_running()
    stop(group.ranks[1])
    time.sleep(0.05)  # the other one waits for it now
    stop(group.ranks[0])
    time.sleep(2.5)  # longer than the deadline and a tick
    group.ranks[0].send_signal(signal.SIGCONT)
    time.sleep(0.1)  # nobody comes back at the same moment
    before = progress(group)
    group.ranks[1].send_signal(signal.SIGCONT)
    while progress(group) < before + 100:
        assert not inspect(group.segment.fd).aborted
        time.sleep(0.01)
    group.segment.abort("enough")
    assert all(output.endswith("supervisor: enough") for output in group.outputs())
