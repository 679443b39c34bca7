"""The time in which requests wait for new workers."""

import asyncio
import logging
from collections.abc import Callable

from numaserve.server.engine.clock import Clock
from numaserve.server.metrics.metrics import Metrics

logger = logging.getLogger(__name__)


class Outage:
    """Lasts from the death of the workers to the first step that others have answered, or to the moment in which there
    are others and nobody to serve, however many deaths there are in between.

    `expired` is called when there are no workers and it has lasted for `timeout_s`, or longer as there were some until
    then: while there are, requests are better served than ended.
    """

    def __init__(self, metrics: Metrics, clock: Clock, *, timeout_s: float, expired: Callable[[], None]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._timeout_s = timeout_s
        self._on_expired = expired
        self._began: float | None = None
        self._ended = 0.0
        self._up = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.expired = False  # there are no workers for too long, and nobody should be made to wait for their end

    def workers_down(self) -> None:
        """The workers have died."""
        now = self._clock()
        if self._began is None:
            self._began = now
        self._stop_timer()
        left = max(0.0, self._began + self._timeout_s - now)
        self._timer = asyncio.get_running_loop().call_later(left, self._expire)

    def workers_ended(self) -> None:
        """The last of the old ones has ended, and others are started."""
        self._ended = self._clock()

    def workers_up(self) -> None:
        """There are new ones, which have answered nothing yet."""
        self._up = self._clock()
        self.expired = False
        self._stop_timer()

    def end(self) -> None:
        """A step was answered, or there is nobody to serve. Nothing happens when it does not last."""
        if self._began is not None:
            now = self._clock()
            self._metrics.resume_pause(now - self._began)
            parts = {
                "duration": now - self._began,
                "ending": self._ended - self._began,
                "loading": self._up - self._ended,
                "answering": now - self._up,
            }
            logger.info("outage", extra={"fields": {name: round(seconds, 6) for name, seconds in parts.items()}})
            self._began = None

    def close(self) -> None:
        """The server ends."""
        self._began = None
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        self.expired = True
        self._on_expired()
