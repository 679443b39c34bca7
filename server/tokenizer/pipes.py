"""Reading and writing the pipes of a child that may be stopped, slow or gone. The pipes must not be blocking."""

from __future__ import annotations

import os
import select
import time
from typing import IO

_CHUNK = 2**20  # bytes


class TooLate(Exception):
    """The child did not do its part in time."""


def send(pipe: IO[bytes], data: bytes, deadline: float) -> None:
    """Write all of `data` by the `deadline`, a `time.monotonic()`. Raises `TooLate` and `BrokenPipeError`."""
    rest = memoryview(data)
    while rest:
        _wait(pipe, select.POLLOUT, deadline)
        rest = rest[os.write(pipe.fileno(), rest[:_CHUNK]) :]


def receive(pipe: IO[bytes], size: int, deadline: float) -> bytes:
    """Read `size` bytes by the `deadline`, fewer where the child ends. Raises `TooLate`."""
    data = bytearray()
    while len(data) < size:
        _wait(pipe, select.POLLIN, deadline)
        chunk = os.read(pipe.fileno(), min(_CHUNK, size - len(data)))
        if not chunk:
            break
        data += chunk
    return bytes(data)


def _wait(pipe: IO[bytes], event: int, deadline: float) -> None:
    # poll, as select knows no descriptors beyond 1023.
    poll = select.poll()
    poll.register(pipe, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TooLate
