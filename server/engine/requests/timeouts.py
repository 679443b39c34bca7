"""The ends of the time that requests were given."""

import asyncio
import heapq
from collections.abc import Callable, Iterable

from numaserve.server.engine.clock import Clock


class Timeouts:
    """Tells of requests whose time has passed, soonest first. One timer for all; none while nobody has such a time."""

    def __init__(self, clock: Clock, late: Callable[[Iterable[str]], None]) -> None:
        """`late` gets ids of requests, of which some may have ended by themselves."""
        self._clock = clock
        self._late = late
        self._heap: list[tuple[float, str]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request_id: str, at: float) -> None:
        """Note a request and the end of its time, by the clock."""
        heapq.heappush(self._heap, (at, request_id))
        if self._heap[0][0] == at:
            self._arm()

    def look(self, now: float) -> None:
        """Tell of those whose time has passed. Called before each plan: a timer alone would be late for some."""
        late = []
        while self._heap and self._heap[0][0] <= now:
            late.append(heapq.heappop(self._heap)[1])
        if late:
            self._late(late)

    def close(self) -> None:
        """Forget all."""
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
