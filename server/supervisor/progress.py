"""A watch over answers that no longer come."""

import asyncio
from collections.abc import Callable


class ProgressWatch:
    """Calls `on_stall` when a step was sent and no answer of any kind arrived for `deadline_s` seconds.

    It is fed by the step loop itself, so that a worker that only answers pings does not count as alive. While
    nothing is in flight no timer runs: idle costs nothing. While steps come and go one timer is re-armed about once per
    deadline, not once per step.
    """

    def __init__(self, deadline_s: float, on_stall: Callable[[], None]) -> None:
        self.deadline_s = deadline_s
        self._on_stall = on_stall
        self._timer: asyncio.TimerHandle | None = None
        self._outstanding = 0
        self._last = 0.0

    def expect(self, answers: int) -> None:
        """Note a step that `answers` workers must answer."""
        if not self._outstanding:
            self._last = asyncio.get_running_loop().time()
        self._outstanding += answers
        if self._timer is None:
            self._arm()

    def allow(self, deadline_s: float) -> None:
        """Let answers take so long from now on."""
        self.deadline_s = deadline_s
        if self._timer is not None and self._timer.when() > self._last + deadline_s:
            self._timer.cancel()
            self._arm()

    def answered(self) -> None:
        """Note the answer of one worker to one step."""
        self._outstanding -= 1
        self._last = asyncio.get_running_loop().time()

    def touch(self) -> None:
        """Note progress that completes no answer, such as a part of the weights that was loaded."""
        self._last = asyncio.get_running_loop().time()

    def stop(self) -> None:
        """Watch no longer."""
        self._outstanding = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_at(self._last + self.deadline_s, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._outstanding:
            return
        if asyncio.get_running_loop().time() >= self._last + self.deadline_s:
            self._outstanding = 0
            self._on_stall()
        else:
            self._arm()
