"""A few threads for one kind of work, shared by a bounded number of requests."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from numaserve.server.engine.admission.reserve import reserve_of
from numaserve.server.engine.types import NotReady, QueueFull
from numaserve.server.text.caller import CALLER
from numaserve.server.text.fair_semaphore import FairSemaphore

_RETRY_AFTER_S = 1  # a turn is short; whoever comes again finds others

T = TypeVar("T")


class Executor:
    """Runs pieces of work in its own threads; for one event loop.

    Callers take turns (`CALLER`), and the requests of one are first come, first served. A request is admitted once and
    then runs one piece after another, each at the end of its caller's line: nobody waits for the whole of another one's
    work. A caller of whom nothing is in finds a reserve when the executor is full.

    Pieces wait in the event loop rather than in the pool's queue, so that what a cancelled task still wanted is gone at
    once, with the text it holds. A piece that has begun is finished.
    """

    def __init__(self, name: str, *, threads: int, max_requests: int, waiting: str = "texts") -> None:
        """`name` is the threads'; `waiting` says to clients what too many of wait when it is full."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waiting = waiting
        self._semaphore = FairSemaphore(threads)
        self._max_requests = max_requests
        self._requests: Counter[str] = Counter()
        self._closed = False

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """A context in which a request may run pieces. Raises `QueueFull` when as many requests are in as may."""
        caller = CALLER.get().name
        reserve = 0 if caller in self._requests else reserve_of(self._max_requests)
        if self._requests.total() >= self._max_requests + reserve:
            raise QueueFull(f"Too many {self._waiting} are waiting. Retry after {_RETRY_AFTER_S} s.", _RETRY_AFTER_S)
        self._requests[caller] += 1
        try:
            yield
        finally:
            self._requests[caller] -= 1
            if not self._requests[caller]:
                del self._requests[caller]

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, called in one of the threads. Raises `NotReady` once the executor is closed."""
        await self._semaphore.acquire(CALLER.get().name)
        if self._closed:
            self._semaphore.release()
            raise NotReady("The server is shutting down.")
        running = asyncio.wrap_future(self._pool.submit(work))
        # The thread is free when the piece has ended, not when the request that wanted it is gone.
        running.add_done_callback(lambda _: self._semaphore.release())
        return await asyncio.shield(running)

    def close(self) -> None:
        """Run nothing more; what runs is not waited for."""
        self._closed = True
        self._pool.shutdown(wait=False)
