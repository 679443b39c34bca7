"""A worker's standard error, whose lines become log records."""

import asyncio
import contextlib
import fcntl
import logging
import os
import time

from numaserve.workers.interface.log_lines import decode_line

logger = logging.getLogger("numaserve.worker")

MAX_LINE_BYTES = 1 << 16  # longer lines are cut off; a traceback is one line
BURST_LINES = 500
LINES_A_SECOND = 20.0
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 16


class ErrorPipe:
    """The reading end of a pipe. The writing end, `write_fd`, is for the worker; `close_write_end` closes it in this
    process.

    Writing never blocks the worker: output that does not fit while the front end is busy is lost. Output above the rate
    limit is read but not logged. Must be constructed inside a running event loop.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._pid: int | None = None
        self._loop = asyncio.get_running_loop()
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self.write_fd, False)
        with contextlib.suppress(OSError):  # the user's pipes may have reached their memory limit
            fcntl.fcntl(self.write_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._rest = b""
        self._cut = False  # the current line was too long, and its beginning has been logged
        self._credit = float(BURST_LINES)
        self._credited = time.monotonic()
        self._left_out = 0
        self._loop.add_reader(self._read_fd, self._on_readable)

    def started(self, pid: int) -> None:
        """Note the worker's process id, and close the writing end in this process, as the worker has inherited it."""
        self._pid = pid
        self.close_write_end()

    def close_write_end(self) -> None:
        """Close the writing end in this process; the worker keeps its own."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def close(self) -> None:
        """Log the remaining output and close the pipe. The worker has ended."""
        self.close_write_end()
        while self._read():
            pass
        if self._rest:
            self._tell(self._rest)
        self._tell_left_out()
        self._loop.remove_reader(self._read_fd)
        os.close(self._read_fd)

    def _on_readable(self) -> None:
        if self._read() == b"":
            self._loop.remove_reader(self._read_fd)  # the worker closed its end, and may or may not have exited

    def _read(self) -> bytes | None:
        """Read once and log the complete lines. Return the bytes read: empty at the end, None if there are none yet."""
        try:
            data = os.read(self._read_fd, _READ_BYTES)
        except BlockingIOError:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not self._cut:
                self._tell(line)
            self._cut = False
        if self._cut:
            self._rest = b""
        elif len(self._rest) > MAX_LINE_BYTES:
            self._tell(self._rest)
            self._rest, self._cut = b"", True
        return data

    def _tell(self, line: bytes) -> None:
        if not line.strip():
            return
        if not self._may_speak():
            self._left_out += 1
            return
        self._tell_left_out()
        record = decode_line(line)
        if record is None:
            text = line[:MAX_LINE_BYTES].decode(errors="backslashreplace").rstrip()
            self._log(logging.WARNING, text)
            return
        more = {} if record.exception is None else {"exception": record.exception}
        self._log(record.level, record.message, worker_logger=record.logger, **more)

    def _may_speak(self) -> bool:
        now = time.monotonic()
        self._credit = min(BURST_LINES, self._credit + (now - self._credited) * LINES_A_SECOND)
        self._credited = now
        if self._credit < 1:
            return False
        self._credit -= 1
        return True

    def _tell_left_out(self) -> None:
        if self._left_out:
            count, self._left_out = self._left_out, 0
            self._log(logging.WARNING, f"dropped {count} lines of the worker's output")

    def _log(self, level: int, message: str, **fields: object) -> None:
        logger.log(level, "%s", message, extra={"fields": {"rank": self._rank, "pid": self._pid, **fields}})
