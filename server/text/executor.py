"""An executor: a few threads for one kind of work, shared by a bounded number of requests."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from numaserve.server.common.fair_semaphore import FairSemaphore
from numaserve.server.engine.admission.reserve import reserve_of
from numaserve.server.engine.types import NotReady, QueueFull
from numaserve.server.text.caller import CALLER

_RETRY_AFTER_S = 1  # pieces are short: a second later the queue has changed

T = TypeVar("T")


class Executor:
    """Runs pieces of work in its own threads; for one event loop.

    Callers (`CALLER`) are served round-robin, and the requests of one caller in order of arrival. A request is admitted
    once and then runs one piece after another. Each piece queues after the waiting pieces of its caller, so no request
    waits for the whole of another. A full executor still has a reserve for callers that have no admitted request.

    Pieces wait in the event loop instead of the pool's queue. The pieces of a cancelled task, and the text they hold,
    are thus freed at once. A piece that has begun is finished.
    """

    def __init__(
        self, name: str, *, threads: int, max_requests: int, waiting: str = "texts", each: int | None = None
    ) -> None:
        """Create an idle executor. `name` prefixes the threads' names; `waiting` names the waiting work in errors for
        clients. At most `each` of the threads work for one caller; None: all."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waiting = waiting
        self._semaphore = FairSemaphore(threads, each)
        self._max_requests = max_requests
        self._requests: Counter[str] = Counter()
        self._closed = False

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Return a context in which a request may run pieces. Raises `QueueFull` if the maximum number of requests is
        admitted."""
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
        """Return the result of `work`, called in one of the threads. Raises `NotReady` once the executor is closed."""
        caller = CALLER.get().name
        await self._semaphore.acquire(caller)
        if self._closed:
            self._semaphore.release(caller)
            raise NotReady("The server is shutting down.")
        running = asyncio.wrap_future(self._pool.submit(work))
        # The thread becomes free when the piece ends, even if the request was cancelled before.
        running.add_done_callback(lambda _: self._semaphore.release(caller))
        try:
            return await asyncio.shield(running)
        finally:
            del running  # an error of the work refers to this frame, and the future to the error

    def close(self) -> None:
        """Start nothing more; running pieces are not waited for."""
        self._closed = True
        self._pool.shutdown(wait=False)
