"""The time that processes had, and waited for, the processors."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class CpuTimes(NamedTuple):
    """The nanoseconds that threads ran, and were ready to run but had no core, in total."""

    cpu_ns: int = 0
    cpu_wait_ns: int = 0


def thread_cpu_times(thread: Path) -> CpuTimes:
    """Return the times of the thread with the folder `thread`, /proc/PID/task/TID; zeros on a kernel without
    `CONFIG_SCHED_INFO`, or where the folder is gone.

    Reads `schedstat` (Documentation/scheduler/sched-stats.rst) in tens of microseconds. Raises OSError where the thread
    ends at that moment.
    """
    try:
        ran, waited, _ = (thread / "schedstat").read_bytes().split()
    except FileNotFoundError:
        return CpuTimes()
    return CpuTimes(int(ran), int(waited))


def cpu_times(pid: int) -> CpuTimes:
    """Return the times of the threads that a process has now; zeros for a process that has ended, or on a kernel
    without `CONFIG_SCHED_INFO`."""
    ran = waited = 0
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            with suppress(OSError):  # the thread has ended
                each = thread_cpu_times(thread)
                ran, waited = ran + each.cpu_ns, waited + each.cpu_wait_ns
    return CpuTimes(ran, waited)
