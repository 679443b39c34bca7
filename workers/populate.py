"""The KV cache's memory is fetched from the kernel while a worker has nothing else to do."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os

_MADV_POPULATE_WRITE = 23  # linux/mman.h, since Linux 5.14
_PIECE_BYTES = 2 << 20  # a huge page: tenths of a millisecond, milliseconds in some virtual machines

logger = logging.getLogger(__name__)


class Population:
    """Touches memory for the first time, a piece at a time.

    Else the steps do it: every layer's part of a token may be the first of a huge page, and the step then waits until
    all of those are cleared. Doing it all before the first request would delay that by seconds for a large cache; a
    thread beside the steps would take their cores and memory.
    """

    def __init__(self, address: int, nbytes: int) -> None:
        """Of ``address .. address + nbytes``; `address` is rounded up to a page."""
        self._next = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        self._end = address + nbytes

    def advance(self) -> bool:
        """Touch the next piece. False when there is nothing left to touch, or the kernel cannot do it ahead."""
        nbytes = min(_PIECE_BYTES - self._next % _PIECE_BYTES, self._end - self._next)
        if nbytes <= 0:
            return False
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.madvise(ctypes.c_void_p(self._next), ctypes.c_size_t(nbytes), _MADV_POPULATE_WRITE) != 0:
            reason = os.strerror(ctypes.get_errno())
            logger.info("memory of the KV cache is fetched at its first use, not ahead of it: %s", reason)
            self._next = self._end
        self._next += nbytes
        return self._next < self._end
