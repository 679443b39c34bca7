"""The bandwidth of a disk, by plain calls."""

import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from numaserve.workers.kv_disk.tier import READERS, WRITERS
from numaserve.workers.weights.cache.background import leave_time_to_steps


class PlainFile:
    """A file that is read and written past the page cache, by as many threads as the disk tier has."""

    def __init__(self, path: Path) -> None:
        """Open the file, or create it."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)

    def write(self, offsets: Sequence[int], nbytes: int) -> float:
        """Bytes per second that are written and synced."""

        def put(memory: memoryview, offset: int) -> int:
            return os.pwrite(self._fd, memory, offset)

        return self._rate(WRITERS, offsets, nbytes, put, lambda: os.fdatasync(self._fd))

    def read(self, offsets: Sequence[int], nbytes: int) -> float:
        """Bytes per second that are read."""

        def get(memory: memoryview, offset: int) -> int:
            return os.preadv(self._fd, [memory], offset)

        return self._rate(READERS, offsets, nbytes, get, lambda: None)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    @staticmethod
    def _rate(
        depth: int, offsets: Sequence[int], nbytes: int, call: Callable[[memoryview, int], int], end: Callable[[], None]
    ) -> float:
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for offset in offsets:
            waiting.put(offset)

        def work() -> None:
            leave_time_to_steps([])
            memory = memoryview(mmap.mmap(-1, nbytes))
            while not waiting.empty():
                try:
                    offset = waiting.get_nowait()
                except queue.Empty:
                    return
                assert call(memory, offset) == nbytes

        threads = [threading.Thread(target=work) for _ in range(depth)]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        end()
        return len(offsets) * nbytes / (time.monotonic() - begin)
