"""The timeouts for other processes, which count only while this process runs, and end only after reading answers.

A process can be stopped, its cgroup frozen, its machine paused. The clock goes on meanwhile, and answers wait unread.
Code that waits with a timeout therefore looks at the clock often. A gap of more than `TICK_S` between two looks means
that this process was absent, and does not count. After an absence, the others have at least one tick left, because they
may have been absent too. `shm_comm/include/numaserve_patience.h` does the same for the waits of ranks.

A thread that ticks on behalf of all waits was rejected: an event loop that hangs while that thread runs would count as
present. CLOCK_THREAD_CPUTIME_ID was rejected too: a sleeping waiter spends no processor time.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

TICK_S = 0.5  # a loop that is only busy looks sooner
_LOOK_S = TICK_S / 2
_READ_S = 0.01  # between the end of the time and the timeout, to read waiting answers


class Patience:
    """A timeout in seconds, spent from one look at `clock` to the next."""

    __slots__ = ("_clock", "_counted", "_looked", "_spent", "seconds")

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._spent = 0.0
        self._counted = 0.0  # of the time between the last two looks
        self._looked = clock()

    @property
    def spent_s(self) -> float:
        """The seconds spent, including those since the last look."""
        return self._spent + min(self._clock() - self._looked, TICK_S)

    @property
    def pause_s(self) -> float:
        """The seconds until the next look is due."""
        return max(_READ_S, min(self.seconds - self._spent, _LOOK_S))

    def ends(self) -> bool:
        """Look at the clock. Return whether the time was over at the previous look, with no absence since."""
        now = self._clock()
        gap, self._looked = now - self._looked, now
        if gap > TICK_S:
            self._spent = min(self._spent, self.seconds - TICK_S)
            self._counted = 0.0
            return False
        was_spent = self._spent >= self.seconds
        self._spent += gap
        self._counted = gap
        return was_spent

    def excuse(self, seconds: float) -> None:
        """Take back `seconds` of the time since the look before the last one: the other process could not run. Infinite
        `seconds` take back all time spent, and negative ones spend time."""
        if seconds < math.inf:
            seconds = min(seconds, self._counted)
        self._spent = max(0.0, self._spent - seconds)


class PatientTimer:
    """A timer that calls `ended` in the event loop when a `Patience` has run out.

    Start it inside a running event loop. A stopped timer costs nothing. A restart leaves the loop's timer unchanged:
    that timer notices the new time when it fires. uvloop calls timers before it reads descriptors. `Patience.ends`
    therefore takes a last look, one turn of the loop after the time is over.

    After each look, `excused` returns the seconds to take back (`Patience.excuse`).
    """

    def __init__(self, ended: Callable[[], None], excused: Callable[[], float] | None = None) -> None:
        self._ended = ended
        self._excused = excused
        self._patience: Patience | None = None  # while it runs
        self._timer: asyncio.TimerHandle | None = None

    @property
    def spent_s(self) -> float:
        """The seconds that this process ran since the start; 0 while the timer is stopped."""
        return 0.0 if self._patience is None else self._patience.spent_s

    def start(self, seconds: float) -> None:
        """Start or restart the timer with `seconds`."""
        self._patience = Patience(seconds, asyncio.get_running_loop().time)
        if self._timer is None or seconds < _LOOK_S:
            self._arm(self._patience)

    def allow(self, seconds: float) -> None:
        """Change the total time to `seconds`, time already spent included. Does nothing while the timer is stopped."""
        if self._patience is not None:
            self._patience.seconds = seconds
            if seconds < _LOOK_S:
                self._arm(self._patience)

    def pause(self) -> None:
        """Stop the timer, but leave the loop's timer to fire without effect."""
        self._patience = None

    def stop(self) -> None:
        """Stop the timer, and cancel the loop's timer."""
        self._patience = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, patience: Patience) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(patience.pause_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._patience is None:
            return
        if self._patience.ends():
            self._patience = None
            self._ended()
            return
        if self._excused is not None:
            self._patience.excuse(self._excused())
        self._arm(self._patience)


@asynccontextmanager
async def patiently(seconds: float) -> AsyncIterator[None]:
    """Raise `TimeoutError`, as `asyncio.timeout` does, after `seconds` in which this process runs."""
    async with asyncio.timeout(None) as timeout:
        timer = PatientTimer(lambda: timeout.reschedule(asyncio.get_running_loop().time()))
        timer.start(seconds)
        try:
            yield
        finally:
            timer.stop()


async def wait_patiently(futures: Iterable[asyncio.Future[None]], seconds: float) -> None:
    """Wait until all `futures` are done, for at most `seconds` in which this process runs."""
    with suppress(TimeoutError):
        async with patiently(seconds):
            await asyncio.wait(futures)
