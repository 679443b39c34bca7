"""The threads in which matchers work."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger(__name__)

_THREADS = 2  # a mask takes tens of microseconds, and they run on the cores of the workers
_STUCK_S = 0.05  # well above what a mask takes, well below the deadline of those who wait behind it
_MOST_STUCK = 64


class MatcherThreads:
    """Runs short pieces of work, which raise nothing, beside the event loop to which this belongs.

    A piece that does not come back costs its thread, and nobody else's turn: as long as others wait, another thread
    takes its place. A `ThreadPoolExecutor` would stand still once each of its threads is held up, and would keep the
    process from ending; these are daemons.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._began: dict[int, float] = {}  # when each thread began its piece, by a number of the thread's own
        self._stuck: set[int] = set()  # threads that have been replaced, and end when they come back
        self._threads = 0  # that were started, ever
        self._looking = False
        self._closed = False

    def submit(self, work: Callable[[], None]) -> None:
        """Have `work` called in one of the threads, in the order of the calls."""
        while self._threads < _THREADS:
            self._start()
        self._work.put(work)
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(_STUCK_S, self._look)

    def close(self) -> None:
        """Begin nothing more; what runs is not waited for."""
        self._closed = True
        for _ in range(self._threads):
            self._work.put(None)

    def _start(self) -> None:
        number = self._threads
        self._threads += 1
        threading.Thread(target=self._run, args=(number,), name=f"matcher-{number}", daemon=True).start()

    def _look(self) -> None:
        self._looking = not self._closed and not self._work.empty()
        if not self._looking:
            return
        before = time.monotonic() - _STUCK_S
        for number, began in list(self._began.items()):
            if began < before and number not in self._stuck and len(self._stuck) < _MOST_STUCK:
                logger.warning("a constraint takes longer than %g s; another thread takes over", _STUCK_S)
                self._stuck.add(number)
                self._start()
        asyncio.get_running_loop().call_later(_STUCK_S, self._look)

    def _run(self, number: int) -> None:
        while not self._closed and (work := self._work.get()) is not None:
            self._began[number] = time.monotonic()
            work()
            del self._began[number]
            del work  # it may hold much memory, and the next piece may be long in coming
            if number in self._stuck:
                self._stuck.discard(number)
                return
