"""Admission control: the bounds of the queue."""

from collections.abc import Sequence

from numaserve.server.engine.admission.backlog import Backlog
from numaserve.server.engine.admission.reserve import RESERVE, reserve_of
from numaserve.server.engine.types import QueueFull
from numaserve.server.scheduler.request import Request
from numaserve.server.scheduler.scheduler import Scheduler


class Admission:
    """Bounds the queue in requests and in predicted seconds. Prompts of requests with a place do not count (`Places`).

    A client without live requests can use a reserve beyond both bounds. A flood of requests from another client fills
    the queue, but cannot keep the first client out.
    """

    def __init__(
        self, scheduler: Scheduler, backlog: Backlog, *, max_queued_requests: int, max_queued_s: float
    ) -> None:
        self._scheduler = scheduler
        self._backlog = backlog
        self._capacity = scheduler.config.max_running + max_queued_requests
        self._reserve = reserve_of(max_queued_requests)
        self._max_queued_s = max_queued_s

    def check(self, requests: Sequence[Request], live: int, now: float) -> None:
        """Raise `QueueFull` unless `requests` can be admitted in addition to the `live` requests."""
        is_new = len(requests) <= self._reserve and not self._scheduler.waiting.live_of(requests[0].client.name)
        capacity = self._capacity + self._reserve * is_new
        max_queued_s = self._max_queued_s * (1 + is_new * RESERVE)
        if live + len(requests) > capacity:
            message = f"The server is full: {live} requests are running or queued (limit {capacity})."
        elif self._backlog.seconds > max_queued_s:
            message = (
                f"The queue is full: the predicted work of the waiting requests is {self._backlog.seconds:.0f} s "
                f"(limit {max_queued_s:g} s)."
            )
        else:
            return
        retry_after = self._backlog.retry_after(now)
        raise QueueFull(f"{message} Retry after {retry_after} s.", retry_after)
