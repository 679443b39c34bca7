"""`python -m numaserve.ray.launch PARENT CORES COMMAND...`: becomes COMMAND on CORES (0,1,...), ended with PARENT.

The signal of a parent's death comes when the parent's *thread* ends that started this: `ServerProcess` has one that
waits for the end of the server.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Never returns."""
    parent, cores, *command = sys.argv[1:]
    # SIGTERM, at which the server ends its workers and removes its sockets; its requests have gone with the replica.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(1)  # it died before the call
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
