"""The threads in which matchers work."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from numaserve.server.common.patience import Patience
from numaserve.server.engine.masks.slow_work import SlowWork
from numaserve.server.scheduler.client import Client

logger = logging.getLogger(__name__)

_THREADS = 2  # a mask takes tens of microseconds, and they run on the cores of the workers
_STUCK_S = 0.05  # well above what a mask takes, well below the deadline of those who wait behind it
_MOST_STUCK = 4  # each takes what is left of a core
_LOWEST = 19  # niceness


class MatcherThreads:
    """Runs short pieces of work, which raise nothing, beside the event loop to which this belongs.

    A piece that does not come back costs its thread, and nobody else's turn: another thread takes its place, and it
    goes on with the lowest priority, since workers have the same cores. A `ThreadPoolExecutor` would stop once
    each of its threads is stuck, and would keep the process from ending; these threads are daemons.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._pieces: dict[int, Patience] = {}  # with each thread's piece, by the system's number of it
        self._stuck: set[int] = set()  # threads that have been replaced, and end when they come back
        self._threads = 0  # that were started, ever
        self._looking = False
        self._closed = False
        self._slow = SlowWork()

    def submit(self, work: Callable[[], None]) -> None:
        """Have `work` called in one of the threads, in the order of the calls."""
        while self._threads < _THREADS:
            self._start()
        self._work.put(work)
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(_STUCK_S, self._look)

    def submit_slow(self, work: Callable[[], None], client: Client) -> None:
        """Have `work` called that waits for another process, when it is the client's turn; from any thread."""
        self._slow.submit(work, client)

    def close(self) -> None:
        """Begin nothing more; what runs is not waited for."""
        self._closed = True
        self._slow.close()
        for _ in range(self._threads):
            self._work.put(None)

    def _start(self) -> None:
        threading.Thread(target=self._run, name=f"matcher-{self._threads}", daemon=True).start()
        self._threads += 1

    def _look(self) -> None:
        self._looking = not self._closed and bool(self._pieces or not self._work.empty())
        if not self._looking:
            return
        for number, piece in list(self._pieces.items()):
            if piece.ends() and number not in self._stuck and len(self._stuck) < _MOST_STUCK:
                logger.warning(
                    "a constraint is taking longer than %g s; starting another thread for the other constraints",
                    _STUCK_S,
                )
                self._stuck.add(number)
                with contextlib.suppress(OSError):  # it has just ended
                    os.setpriority(os.PRIO_PROCESS, number, _LOWEST)
                self._start()
        asyncio.get_running_loop().call_later(_STUCK_S, self._look)

    def _run(self) -> None:
        number = threading.get_native_id()
        while not self._closed and (work := self._work.get()) is not None:
            self._pieces[number] = Patience(_STUCK_S)
            work()
            del self._pieces[number]
            del work  # it may hold much memory, and the next piece may be long in coming
            if number in self._stuck:
                self._stuck.discard(number)
                return
