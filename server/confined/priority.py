"""The priority of processes that must not slow the workers."""

import contextlib
import errno
import os
import time
from pathlib import Path

# Niceness above the server's: about a quarter of a busy core. 10, a tenth, was rejected: gaps between tokens next to
# images were no shorter, and the longest allowed decoding would take nearly as long as a decoder is waited for.
_BACKGROUND = 5
_LOWEST = 19
_TRIES = 5
_PAUSE_S = 0.1  # the kernel accepts ten changes of session niceness per second, over all users


def run_in_background(pid: int) -> None:
    """Limit a process, which leads its own session, to a small share of a core that workers need."""
    os.setpriority(os.PRIO_PROCESS, pid, min(_LOWEST, os.getpriority(os.PRIO_PROCESS, 0) + _BACKGROUND))
    _lower_session(pid, _BACKGROUND)


def run_when_idle(pid: int) -> None:
    """Limit a process, which leads its own session, to cores that no worker needs."""
    os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    _lower_session(pid, _LOWEST)


def _lower_session(pid: int, niceness: int) -> None:
    """Set the niceness of the session that `pid` leads.

    The niceness or policy of the process alone is not enough. Outside control groups, Linux shares each core among
    sessions first (autogroups, see sched(7)) and compares processes only within a session. Next to workers, which have
    their own sessions, a process with `SCHED_IDLE` got half of the core, and steps took as long as its work.
    """
    file = Path(f"/proc/{pid}/autogroup")
    with contextlib.suppress(OSError):  # the kernel has no autogroups, or the process has ended
        for _ in range(_TRIES):
            if _is_written(file, str(niceness)):
                return
            time.sleep(_PAUSE_S)


def _is_written(file: Path, text: str) -> bool:
    try:
        file.write_text(text)
    except OSError as error:
        if error.errno != errno.EAGAIN:
            raise
        return False
    return True
