"""The priority of background processes: that of the process, and that of its session, which alone counts at times."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from numaserve.server.confined.child_process import ChildProcess
from numaserve.server.confined.priority import run_when_idle

SLEEP = (sys.executable, "-S", "-c", "input()")
AUTOGROUPS = Path("/proc/self/autogroup")


@pytest.fixture
def background() -> Iterator[int]:
    process = ChildProcess(SLEEP, in_background=True)
    yield process.pid
    process.stop()


def niceness_of_session(pid: int) -> int:
    found = re.search(r"nice (-?\d+)", Path(f"/proc/{pid}/autogroup").read_text())
    assert found is not None
    return int(found[1])


def test_a_background_process_has_a_session_of_its_own_and_a_lower_priority(background: int) -> None:
    assert os.getsid(background) == background
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, background) == min(19, ours + 5)


def has_autogroups() -> bool:
    """Whether sessions have a niceness: the file is empty where autogroups are built in and switched off."""
    return AUTOGROUPS.exists() and AUTOGROUPS.read_text().strip() != ""


@pytest.mark.skipif(not has_autogroups(), reason="needs autogroups (kernel.sched_autogroup_enabled)")
def test_the_session_of_a_background_process_is_lowered_too(background: int) -> None:
    ours = niceness_of_session(os.getpid())
    assert ours < niceness_of_session(background) < 19
    run_when_idle(background)
    assert niceness_of_session(background) == 19
    assert niceness_of_session(os.getpid()) == ours


def test_an_idle_process_yields_to_every_other(background: int) -> None:
    run_when_idle(background)
    assert os.sched_getscheduler(background) == os.SCHED_IDLE


def test_other_processes_stay_in_the_session_of_the_server() -> None:
    process = ChildProcess(SLEEP)
    try:
        assert os.getsid(process.pid) == os.getsid(0)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        process.stop()
