"""The measurement of a disk's bandwidth, before it is used."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from numaserve.kernels import checksum
from numaserve.workers.kv_disk.files import DiskError, File, Staging
from numaserve.workers.kv_disk.threads import IoThreads, Task

_READ_BYTES = 1 << 20
_READS = 16  # 16 MiB: a hundredth of a second of a fast disk, and some seconds of the slowest that is worth using
_PASSES = 3  # the threads share their cores with the steps


class _Reads:
    """Reads of all of a file, which several threads do."""

    def __init__(self, file: File, expected: int) -> None:
        """Expect a checksum of each read."""
        self._file, self._expected = file, expected
        self._waiting = list(range(_READS))
        self._left = _READS
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._errors: list[Exception] = []

    def take(self) -> Task | None:
        with self._lock:
            if not self._waiting:
                return None
            number = self._waiting.pop()
        return lambda staging: self._read(number, staging)

    def wait(self) -> None:
        self._done.wait()
        if self._errors:
            raise self._errors[0]

    def _read(self, number: int, staging: Staging) -> None:
        try:
            into = staging.of(_READ_BYTES)
            count = self._file.read(into, number * _READ_BYTES)
            if count < _READ_BYTES or checksum(into) != self._expected:
                raise DiskError("the disk does not return what was written")
        except (OSError, DiskError) as error:
            self._errors.append(error)
        with self._lock:
            self._left -= 1
            if not self._left:
                self._done.set()


def read_rate(path: Path, open_file: Callable[[Path], File], threads: IoThreads) -> float:
    """Return the bytes per second that threads read together from a file, which is made for this and removed.

    Raises `OSError`, or `DiskError`.
    """
    data = os.urandom(_READ_BYTES)  # some file systems compress zeros
    path.unlink(missing_ok=True)
    file = open_file(path)
    try:
        _fill(file, data)
        return max(_rate(file, checksum(memoryview(data)), threads) for _ in range(_PASSES))
    finally:
        file.close()
        path.unlink(missing_ok=True)


def _rate(file: File, expected: int, threads: IoThreads) -> float:
    reads = _Reads(file, expected)
    begin = time.monotonic()
    threads.add(reads)
    reads.wait()
    return _READS * _READ_BYTES / (time.monotonic() - begin)


def _fill(file: File, data: bytes) -> None:
    memory = Staging().of(len(data))
    memory[:] = data
    for number in range(_READS):
        if file.write(memory, number * len(data)) < len(data):
            raise DiskError("the disk has not taken all that was written")
    file.sync()
