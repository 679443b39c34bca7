"""The time that processes had, and waited for, the processors."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class CpuTimes(NamedTuple):
    """The nanoseconds that the threads of a process ran, and were ready to run but had no core, in total."""

    cpu_ns: int = 0
    cpu_wait_ns: int = 0


def cpu_times(pid: int) -> CpuTimes:
    """Return the times of the threads that a process has now; zeros for a process that has ended, or on a kernel
    without `CONFIG_SCHED_INFO`.

    Reads /proc/PID/task/*/schedstat (Documentation/scheduler/sched-stats.rst): tens of microseconds a thread.
    """
    ran = waited = 0
    with suppress(OSError):
        for task in (_PROC / str(pid) / "task").iterdir():
            with suppress(OSError):  # the thread has ended
                each = (task / "schedstat").read_text().split()
                ran, waited = ran + int(each[0]), waited + int(each[1])
    return CpuTimes(ran, waited)
