"""The three descriptors that every process expects to have."""

import os
import sys


def open_standard_streams() -> None:
    """Open /dev/null in place of each standard stream that is closed.

    Python has None for such a stream, which fails whoever writes to it, and the next file or socket gets its
    descriptor: what a worker or a library writes to standard error would go to a client.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest descriptor that is free, which is this one
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 open until the end of the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
