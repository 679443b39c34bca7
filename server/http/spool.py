"""The spool of an answer: its bytes until the client has read them."""

import asyncio
import contextlib
import logging
import os
import tempfile
import threading
from array import array
from collections.abc import Callable

from starlette.types import Scope

_STATE = "spool"  # of the scope of a request
_NO_RECORD = -1
MEMORY_BYTES = 1 << 18  # of an answer that stay in memory; the rest is in a file

_logger = logging.getLogger("numaserve.api")


class Spool:
    """The numbered records of one answer: vectors, or its JSON.

    Beyond `MEMORY_BYTES` records lie in a file without a name, so an unread answer takes little memory, whatever its
    size. Memory alone was rejected: a client that does not read would hold megabytes of it until its deadline. Without
    a folder that can be written to, records stay in memory.

    `spill`, `record` and `read` may be called in a thread. `take` and `give_back` change the
    budget of all answers; `take` raises `ApiError` if too little is left.
    """

    def __init__(self, take: Callable[[int], None], give_back: Callable[[int], None]) -> None:
        self._take = take
        self._give_back = give_back
        self._counted = 0
        self._starts = array("q")
        self._sizes = array("q")
        self._end = bytearray()  # the records that are not in the file
        self._file: int | None = None
        self._in_file = 0
        self._stays = False  # in memory, as there is no file
        self._lock = threading.Lock()  # a file that is closed while it is read might be another's by then
        self._closed = False

    @property
    def size(self) -> int:
        """The bytes of all records."""
        return self._in_file + len(self._end)

    def reserve(self, count: int) -> None:
        """Take the bytes of records that will come from the budget. Raises `ApiError`."""
        more = count - MEMORY_BYTES - self._counted
        if more > 0:
            self._take(more)
            self._counted += more

    async def keep(self, number: int, data: bytes) -> None:
        """Keep a record, in the file if the records in memory are too many."""
        self.put(number, data)
        if len(self._end) > MEMORY_BYTES:
            await asyncio.to_thread(self.spill)

    async def complete(self) -> None:
        """Give the bytes back that were reserved and are not needed."""
        if self._file is not None:
            await asyncio.to_thread(self.spill)
        self._count(min(self._counted, max(0, self.size - MEMORY_BYTES)))

    def put(self, number: int, data: bytes) -> None:
        """Keep a record in memory."""
        missing = number + 1 - len(self._starts)
        if missing > 0:
            self._starts.extend([_NO_RECORD] * missing)
            self._sizes.extend([0] * missing)
        with self._lock:
            self._starts[number], self._sizes[number] = self.size, len(data)
            self._end += data

    def spill(self) -> None:
        """Move the records to the file."""
        with self._lock:
            if self._closed or self._stays:
                return
            try:
                if self._file is None:
                    self._file = _file_without_name()
                _write_all(self._file, self._end, self._in_file)
            except OSError as error:
                self._stays = True
                _logger.warning("no file for an unread answer, which stays in memory: %s", error)
                return
            self._in_file += len(self._end)
            self._end = bytearray()

    def record(self, number: int) -> bytes:
        """Return a record."""
        return self.read(self._starts[number], self._sizes[number])

    def read(self, start: int, size: int) -> bytes:
        """Return the bytes of the records from `start` on."""
        with self._lock:
            if self._closed:
                raise ValueError("the request has ended")
            if self._file is None or start >= self._in_file:
                at = start - self._in_file
                return bytes(memoryview(self._end)[at : at + size])
            return os.pread(self._file, size, start)

    def close(self) -> None:
        """Forget the records, and give their bytes back."""
        with self._lock:
            self._closed = True
            self._end = bytearray()
            if self._file is not None:
                os.close(self._file)
                self._file = None
        self._count(0)

    def _count(self, count: int) -> None:
        self._give_back(self._counted - count)
        self._counted = count


def spool_of(scope: Scope) -> Spool:
    """Return the spool of a request."""
    spool: Spool = scope["state"][_STATE]
    return spool


def set_spool(scope: Scope, spool: Spool) -> None:
    """Give a request its spool."""
    scope["state"][_STATE] = spool


def _file_without_name() -> int:
    """Return the descriptor of a new file that ends with it. Raises `OSError`.

    /var/tmp is for large files, and /tmp is often memory.
    """
    folders = (os.environ.get("TMPDIR") or "/var/tmp", tempfile.gettempdir())  # noqa: S108 the file has no name
    for folder in folders:
        with contextlib.suppress(OSError):
            return _opened(folder)
    return _opened(folders[-1])


def _opened(folder: str) -> int:
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.dup(file.fileno())


def _write_all(file: int, data: bytearray, start: int) -> None:
    written = 0
    with memoryview(data) as rest:
        while written < len(rest):
            written += os.pwrite(file, rest[written:], start + written)
