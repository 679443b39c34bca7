"""The threads in which matchers run."""

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

_THREADS = 2  # a mask takes tens of microseconds, and the threads run on the cores of the workers
_STUCK_S = 0.05  # well above the time of a mask, well below the deadline of the masks that queue after it
_MOST_STUCK = 4  # each takes the remaining time of a core
_LOWEST = 19  # niceness


class MatcherThreads:
    """Runs short pieces of work, which raise nothing, in threads alongside the event loop that owns this object.

    A piece that does not return costs its thread, but delays no other piece: another thread takes its place. The stuck
    thread continues with the lowest priority, since it shares the workers' cores. A `ThreadPoolExecutor` was rejected:
    it would stop once each of its threads is stuck, and would keep the process from ending. These threads are daemons.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._pieces: dict[int, Patience] = {}  # the current piece of each thread, by native thread id
        self._stuck: set[int] = set()  # native ids of threads that have been replaced, and end when their piece returns
        self._threads = 0  # number of threads started so far
        self._looking = False
        self._closed = False
        self._slow = SlowWork()

    def submit(self, work: Callable[[], None]) -> None:
        """Schedule `work` to be called in one of the threads, in the order of the calls."""
        while self._threads < _THREADS:
            self._start()
        self._work.put(work)
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(_STUCK_S, self._look)

    def submit_slow(self, work: Callable[[], None], client: Client) -> None:
        """Schedule `work` that waits for another process, in fair order between clients; callable from any thread."""
        self._slow.submit(work, client)

    def close(self) -> None:
        """Start no more work; running pieces are not waited for."""
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
                with contextlib.suppress(OSError):  # the thread has just ended
                    os.setpriority(os.PRIO_PROCESS, number, _LOWEST)
                self._start()
        asyncio.get_running_loop().call_later(_STUCK_S, self._look)

    def _run(self) -> None:
        number = threading.get_native_id()
        while not self._closed and (work := self._work.get()) is not None:
            self._pieces[number] = Patience(_STUCK_S)
            work()
            del self._pieces[number]
            del work  # the closure may hold much memory, and the next piece may be a long time away
            if number in self._stuck:
                self._stuck.discard(number)
                return
