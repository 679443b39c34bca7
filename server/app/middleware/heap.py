"""The return of freed memory to the system, which glibc does not do by itself: its heap shrinks only from its end."""

import asyncio
import ctypes
from collections.abc import Callable

_DELAY_S = 1.0
_WORTH_BYTES = 16 << 20


def _malloc_trim() -> Callable[[int], object] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None  # another C library, without malloc_trim


class HeapTrimmer:
    """The trimmer of the heap, which runs one second after much memory was freed.

    A trim runs in a thread: it takes tens of milliseconds and releases the GIL.
    """

    def __init__(self, trim: Callable[[int], object] | None = None) -> None:
        self._trim = trim or _malloc_trim()
        self._released = 0

    def released(self, count: int) -> None:
        """Record that `count` bytes are free or about to be freed."""
        before, self._released = self._released, self._released + count
        # Only crossing the threshold starts the timer: one trim returns everything that is freed until it runs.
        if self._trim is not None and before < _WORTH_BYTES <= self._released:
            asyncio.get_running_loop().call_later(_DELAY_S, self._start, self._trim)

    def _start(self, trim: Callable[[int], object]) -> None:
        self._released = 0
        asyncio.get_running_loop().run_in_executor(None, trim, 0)
