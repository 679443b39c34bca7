"""Processor times of the threads of a process, as Linux reports them."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from numaserve.server.common.cpu_times import CpuTimes
from numaserve.server.supervisor import cpu_time
from numaserve.server.supervisor.cpu_time import ThreadTime, thread_times

OWN_NICENESS, LOWEST = os.getpriority(os.PRIO_PROCESS, 0), 19  # of sched(7)


@contextmanager
def child(program: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", f"print(flush=True)\n{program}"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def until(process: subprocess.Popen[bytes], state: str) -> ThreadTime:
    while (time_of := thread_times(process.pid)[process.pid]).state != state:
        time.sleep(0.01)
    return time_of


def test_a_loop_is_runnable_and_its_times_grow_to_no_more_than_the_clock_has_passed() -> None:
    with child("while True: pass") as process:
        begin, before = time.monotonic(), until(process, "R")
        while (now := thread_times(process.pid)[process.pid]).ran_s < before.ran_s + 0.05:
            time.sleep(0.01)
        assert now.state == "R"
        assert now.waited_s >= before.waited_s
        assert now.ran_s - before.ran_s <= time.monotonic() - begin + 0.02


def test_a_process_that_sleeps_or_is_stopped_wants_no_processor() -> None:
    with child("import time; time.sleep(600)") as process:
        until(process, "S")
        psutil.Process(process.pid).suspend()
        stopped = until(process, "T")
        time.sleep(0.05)
        assert thread_times(process.pid)[process.pid] == stopped


@pytest.mark.skipif(OWN_NICENESS == LOWEST, reason="no thread can have a lower priority than this process")
def test_every_thread_is_seen_but_those_of_lower_priority() -> None:
    ended = threading.Event()
    equal, nicer = threading.Thread(target=ended.wait), threading.Thread(target=ended.wait)
    try:
        for each in (equal, nicer):
            each.start()
        assert nicer.native_id is not None
        os.setpriority(os.PRIO_PROCESS, nicer.native_id, OWN_NICENESS + 1)
        found = thread_times(os.getpid())
        assert {os.getpid(), equal.native_id} <= found.keys()
        assert nicer.native_id not in found
    finally:
        ended.set()
        equal.join()
        nicer.join()


def test_a_kernel_without_scheduler_statistics_tells_the_time_in_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_time, "thread_cpu_times", lambda _: CpuTimes())
    with child("while True: pass") as process:
        while (found := thread_times(process.pid)[process.pid]).ran_s < 0.05:
            time.sleep(0.01)
        assert (found.state, found.waited_s) == ("R", 0.0)


def test_nothing_is_told_of_a_process_that_has_ended() -> None:
    with child("") as process:
        process.wait()
    assert thread_times(process.pid) == {}
