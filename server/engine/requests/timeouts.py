"""The time limits of requests."""

import asyncio
import heapq
from collections.abc import Callable, Iterable

from numaserve.server.engine.clock import Clock


class Timeouts:
    """Reports requests whose time limit has passed, soonest first. One timer, which runs only when needed, serves
    all."""

    def __init__(self, clock: Clock, late: Callable[[Iterable[str]], None]) -> None:
        """Report expired request ids to `late`; some of these requests may have ended already."""
        self._clock = clock
        self._late = late
        self._heap: list[tuple[float, str]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request_id: str, at: float) -> None:
        """Add a request and the end of its time, by the clock."""
        heapq.heappush(self._heap, (at, request_id))
        if self._heap[0][0] == at:
            self._arm()

    def look(self, now: float) -> None:
        """Report expired requests. Called before each plan, because the timer alone would report some of them late."""
        late = []
        while self._heap and self._heap[0][0] <= now:
            late.append(heapq.heappop(self._heap)[1])
        if late:
            self._late(late)

    def close(self) -> None:
        """Forget all requests."""
        self._heap.clear()
        self._stop_timer()

    def _arm(self) -> None:
        self._stop_timer()
        if self._heap:
            left = max(0.0, self._heap[0][0] - self._clock())
            self._timer = asyncio.get_running_loop().call_later(left, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.look(self._clock())
        self._arm()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
