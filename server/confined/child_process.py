"""The child process for work that must not delay or harm this process, reached through pipes with timeouts."""

import errno
import os
import select
import subprocess
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, cast

from numaserve.server.common.patience import Patience
from numaserve.server.confined.priority import run_in_background
from numaserve.workers.interface.python_process import child_environment

_CHUNK = 2**20  # bytes
# Errors of a start that may pass: a lack of descriptors, processes or memory.
_LACKING = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
_PATIENCE_SECONDS = 5.0
_LOOKS_SECONDS = 0.05
_REAPING_SECONDS = 5.0


class TooLate(Exception):
    """The error of a process that did not answer in time."""


class Ended(Exception):
    """The error of a process that ended before it had answered."""


class ChildProcess:
    """A process that `command` started. It ends with `stop`, with this object, or when the interpreter exits.

    Blocking pipes with a timer that kills were rejected: they could not distinguish a late process from an ended one.
    """

    def __init__(self, command: Sequence[str], *, in_background: bool = False) -> None:
        """Start the process, and retry for some seconds without descriptors, processes or memory. Raises `OSError`.

        With `in_background` the process leads its own session and gets a small share of a core that workers need.
        """
        self._popen = _started(command, own_session=in_background)
        if in_background:
            with suppress(ProcessLookupError):  # the process has ended
                run_in_background(self.pid)
        self._input, self._output = cast(IO[bytes], self._popen.stdin), cast(IO[bytes], self._popen.stdout)
        for pipe in (self._input, self._output):
            os.set_blocking(pipe.fileno(), False)
        self._stop = weakref.finalize(self, _stop, self._popen)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, as in `subprocess.Popen`; known after `stop`."""
        return self._popen.returncode

    @property
    def is_stopped(self) -> bool:
        """Return whether `stop` was called."""
        return not self._stop.alive

    def send(self, data: bytes, patience: Patience) -> None:
        """Write all of `data`. Raises `TooLate` and `Ended`."""
        rest = memoryview(data)
        try:
            while rest:
                _wait(self._input, select.POLLOUT, patience)
                rest = rest[os.write(self._input.fileno(), rest[:_CHUNK]) :]
        except BrokenPipeError:
            raise Ended from None

    def receive(self, size: int, patience: Patience) -> bytes:
        """Read `size` bytes. Raises `TooLate` and `Ended`."""
        data = bytearray()
        while len(data) < size:
            _wait(self._output, select.POLLIN, patience)
            chunk = os.read(self._output.fileno(), min(_CHUNK, size - len(data)))
            if not chunk:
                raise Ended
            data += chunk
        return bytes(data)

    def kill(self) -> None:
        """Kill the process, from any thread; senders and receivers then raise `Ended`."""
        self._popen.kill()

    def stop(self) -> None:
        """Kill and reap the process, which has no state worth a clean exit. May be called twice."""
        self._stop()


def _started(command: Sequence[str], *, own_session: bool) -> subprocess.Popen[bytes]:
    # Preloaded allocators and sanitizers reserve more address space than a confined process may have.
    environment = child_environment()
    environment.pop("LD_PRELOAD", None)
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return subprocess.Popen(
                command,
                0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=own_session,
            )
        except OSError as error:
            if error.errno not in _LACKING or time.monotonic() > end:
                raise
        time.sleep(_LOOKS_SECONDS)


def _wait(pipe: IO[bytes], event: int, patience: Patience) -> None:
    # poll, because select supports no descriptors beyond 1023.
    poll = select.poll()
    poll.register(pipe, event)
    patience.ends()  # counts also for a process that sends a little all the time
    while not poll.poll(patience.pause_s * 1000):
        if patience.ends():
            raise TooLate


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(subprocess.TimeoutExpired):  # a killed process remains only if the kernel is in trouble
        process.wait(_REAPING_SECONDS)
    for pipe in (process.stdin, process.stdout):
        cast(IO[bytes], pipe).close()
