"""The time in which requests wait for new workers."""

import logging
from collections.abc import Callable

from numaserve.server.common.patience import PatientTimer
from numaserve.server.engine.clock import Clock
from numaserve.server.metrics.metrics import Metrics

logger = logging.getLogger(__name__)


class Outage:
    """Lasts from the death of the workers to the first step that others have answered, or to the moment in which there
    are others and nobody to serve, however many deaths there are in between.

    `expired` is called when there are no workers and it has lasted for `timeout_s` in which this process ran, or longer
    as there were some until then: while there are, requests are better served than ended.
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
        self._is_overdue = False  # it has lasted for too long, with workers or without
        self._timer = PatientTimer(self._run_out)
        self.expired = False  # there are no workers for too long, and nobody should be made to wait for their end

    def workers_down(self) -> None:
        """The workers have died."""
        self._has_workers = False
        if self._began is None:
            self._began = self._clock()
            self._timer.start(self._timeout_s)
        elif self._is_overdue:
            self._timer.start(0.0)

    def workers_ended(self) -> None:
        """The last of the old ones has ended, and others are started."""
        self._ended = self._clock()

    def workers_up(self) -> None:
        """There are new ones, which have answered nothing yet."""
        self._up = self._clock()
        self._has_workers = True
        self.expired = False

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
            self.close()

    def close(self) -> None:
        """It does not last any more, or the server ends."""
        self._began = None
        self._is_overdue = False
        self._timer.stop()

    def _run_out(self) -> None:
        self._is_overdue = True
        if not self._has_workers:
            self.expired = True
            self._on_expired()
