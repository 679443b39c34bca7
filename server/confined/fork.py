"""Work in a fork of this process, so that nothing of it remains."""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def in_a_fork(work: Callable[[], object]) -> None:
    """Run `work` in a fork, and return when the fork has ended. If the fork fails, end this process in the same way."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            end_with(parent)
            work()
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        finally:
            os._exit(status)  # an exception too: nothing of the parent's code may run here
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold data of clients
        os.kill(parent, -code)
    if code:
        sys.exit(code)


def end_with(parent: int) -> None:
    """Let the kernel end this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
