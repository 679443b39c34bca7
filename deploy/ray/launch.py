"""`python -m numaserve.ray.launch PARENT CORES COMMAND...`: execute COMMAND on CORES (0,1,...), and end with PARENT.

The kernel sends the signal of a parent's death when the *thread* that started this process ends. `ServerProcess`
therefore starts the process in a thread that waits for the end of the server.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def command_on(cores: Sequence[int], command: Sequence[str]) -> list[str]:
    """Return the command that executes `command` on `cores`, as a child of this process that ends with it."""
    place = str(os.getpid()), ",".join(map(str, cores))
    return [sys.executable, "-P", "-m", "numaserve.ray.launch", *place, *command]


def main() -> None:
    """Replace this process by the command; never returns."""
    parent, cores, *command = sys.argv[1:]
    # SIGTERM lets the server end its workers and remove its sockets. The replica's end has already lost its requests.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(1)  # the parent died before the call
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
