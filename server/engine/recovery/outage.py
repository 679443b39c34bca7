"""The time in which requests wait for new workers."""

import logging
from collections.abc import Callable

from numaserve.server.common.patience import PatientTimer
from numaserve.server.engine.clock import Clock
from numaserve.server.metrics.metrics import Metrics

logger = logging.getLogger(__name__)


class Outage:
    """An outage, from the death of the workers to the first step that new workers answer. It also ends when new workers
    are up and no request is live. It may span several deaths.

    `expired` is called when there are no workers after `timeout_s` seconds in which this process ran. While there are
    workers, the call is delayed until they die: requests are better served than ended.
    """

    def __init__(self, metrics: Metrics, clock: Clock, *, timeout_s: float, expired: Callable[[], None]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._timeout_s = timeout_s
        self._on_expired = expired
        self._began: float | None = None
        self._ended = 0.0
        self._up = 0.0
        self._has_workers = True
        self._is_overdue = False  # the outage has lasted for too long, with workers or without
        self._timer = PatientTimer(self._run_out)
        self.expired = False  # the outage is overdue and there are no workers; new requests should not be made to wait

    def workers_down(self) -> None:
        """Note that the workers have died."""
        self._has_workers = False
        if self._began is None:
            self._began = self._clock()
            self._timer.start(self._timeout_s)
        elif self._is_overdue:
            self._timer.start(0.0)

    def workers_ended(self) -> None:
        """Note that the last of the old workers has ended, and that new ones are being started."""
        self._ended = self._clock()

    def workers_up(self) -> None:
        """Note that new workers are up, which have answered nothing yet."""
        self._up = self._clock()
        self._has_workers = True
        self.expired = False

    def end(self) -> None:
        """End the outage: a step was answered, or no request is live. Does nothing without an outage."""
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
            self.close()

    def close(self) -> None:
        """Reset the outage and its timer: the outage is over, or the server ends."""
        self._began = None
        self._is_overdue = False
        self._timer.stop()

    def _run_out(self) -> None:
        self._is_overdue = True
        if not self._has_workers:
            self.expired = True
            self._on_expired()
