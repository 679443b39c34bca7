"""The three standard streams that every process expects to be open."""

import os
import sys


def open_standard_streams() -> None:
    """Open /dev/null in place of each standard stream that is closed.

    Python sets such a stream to None, so that writes to it fail. The next file or socket gets the stream's descriptor:
    the standard error output of a worker or a library would go to a client.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is that of the closed stream
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 open until the end of the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
