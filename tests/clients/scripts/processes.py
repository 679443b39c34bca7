"""A process that is a server, started and ended; imports nothing but what every interpreter has."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator, Sequence
from typing import IO


@contextlib.contextmanager
def running(command: Sequence[str], log: IO[bytes] | IO[str]) -> Iterator[subprocess.Popen[bytes]]:
    """`command`, which says to `log` what it says, until the end of the block."""
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port of 127.0.0.1 at which nobody listens, for a server that cannot choose one itself."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
