"""The time in which requests wait for new workers."""

import asyncio
from collections.abc import Callable

from numaserve.server.engine.clock import Clock
from numaserve.server.metrics.metrics import Metrics


class Outage:
    """Lasts from the death of the workers to the first step that others have answered, however many deaths there are in
    between. `expired` is called, once in an outage, when it has lasted for `timeout_s`."""

    def __init__(self, metrics: Metrics, clock: Clock, *, timeout_s: float, expired: Callable[[], None]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._timeout_s = timeout_s
        self._on_expired = expired
        self._began: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.expired = False  # it has lasted too long, and nobody should be made to wait for its end

    @property
    def on(self) -> bool:
        """Whether it lasts."""
        return self._began is not None

    def begin(self) -> None:
        """The workers have died."""
        if self._began is None:
            self._began = self._clock()
            self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire)

    def end(self) -> None:
        """A step was answered. Nothing happens when it does not last."""
        if self._began is not None:
            self._metrics.resume_pause(self._clock() - self._began)
            self.close()

    def close(self) -> None:
        """The server ends."""
        self._began = None
        self.expired = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        self.expired = True
        self._on_expired()
