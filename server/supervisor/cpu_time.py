"""The processor time of the threads of a process, and the time for which they wait for a processor."""

import os
from pathlib import Path
from typing import NamedTuple

from numaserve.server.common.cpu_times import CpuTimes, thread_cpu_times

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/task/TID/stat after the name (proc_pid_stat(5)): state, utime, stime and nice.
_STATE, _USER, _SYSTEM, _NICE = 0, 11, 12, 16


class ThreadTime(NamedTuple):
    """A thread's times since its start, in seconds. Differences of two looks are of interest."""

    state: str  # as in /proc: R runs or waits for a processor, T and t are stopped
    ran_s: float
    waited_s: float  # for a processor, without a wait that goes on; 0 without scheduler statistics


def thread_times(pid: int) -> dict[int, ThreadTime]:
    """Return the times of a process's threads by thread id. Without the process, or without access to it, the result is
    empty.

    Threads of a lower priority than the main thread are left out: such a thread works in the background, and waits for
    a processor on purpose.

    A cgroup's `cpu.stat` was rejected: it counts throttling by a quota, but not the wait for other processes, and a
    container may hide it. Linux counts both as waits of the thread. A kernel without scheduler statistics still has the
    state and the processor time, in units of 10 ms.
    """
    folder = Path(f"/proc/{pid}/task")
    try:
        main = _nice(_stat(folder / str(pid)))
        threads = list(folder.iterdir())
    except (OSError, ValueError, IndexError):
        return {}
    found: dict[int, ThreadTime] = {}
    for thread in threads:
        try:
            stat = _stat(thread)
            if _nice(stat) <= main:
                found[int(thread.name)] = _time(stat, thread_cpu_times(thread))
        except (OSError, ValueError, IndexError):  # the thread has ended
            continue
    return found


def _time(stat: list[bytes], times: CpuTimes) -> ThreadTime:
    state = stat[_STATE].decode()
    if times.cpu_ns:
        return ThreadTime(state, times.cpu_ns * 1e-9, times.cpu_wait_ns * 1e-9)
    return ThreadTime(state, (int(stat[_USER]) + int(stat[_SYSTEM])) * _TICK_S, 0.0)


def _nice(stat: list[bytes]) -> int:
    return int(stat[_NICE])


def _stat(thread: Path) -> list[bytes]:
    content = (thread / "stat").read_bytes()
    return content.rpartition(b")")[2].split()  # a name may have any bytes, parentheses too
