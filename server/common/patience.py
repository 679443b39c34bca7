"""Patience with others: it is spent only while this process runs, and ends only after a look at what they have said.

A process can be stopped, its cgroup frozen, its machine paused. The clock goes on meanwhile, and the answers of others
wait unread. Every judge of others therefore looks at the clock often: a gap of more than `TICK_S` between two looks is
the judge's own absence and does not count. After an absence the others have at least one tick left, as they may have
been absent too. `shm_comm/include/numaserve_patience.h` is the same for the ranks' waits.

A thread that ticks on behalf of every judge was rejected: an event loop that hangs while that thread runs would be
taken for present. CLOCK_THREAD_CPUTIME_ID was rejected too: a judge that sleeps spends no processor time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

TICK_S = 0.5  # a loop that is merely busy comes back sooner
_LOOK_S = TICK_S / 2
_READ_S = 0.01  # between the end of the time and the verdict; what waits is read in it


class Patience:
    """A number of seconds for others, spent from one look at `clock` to the next."""

    __slots__ = ("_clock", "_looked", "_spent", "seconds")

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._spent = 0.0
        self._looked = clock()

    @property
    def spent_s(self) -> float:
        """Seconds spent, those since the last look included."""
        return self._spent + min(self._clock() - self._looked, TICK_S)

    @property
    def pause_s(self) -> float:
        """Seconds until the next look is due."""
        return max(_READ_S, min(self.seconds - self._spent, _LOOK_S))

    def ends(self) -> bool:
        """Look at the clock. Return whether nothing was left at the look before, and this process was here since."""
        now = self._clock()
        gap, self._looked = now - self._looked, now
        if gap > TICK_S:
            self._spent = min(self._spent, self.seconds - TICK_S)
            return False
        was_spent = self._spent >= self.seconds
        self._spent += gap
        return was_spent


class PatientTimer:
    """A timer that calls `ended` in the event loop when patience with others has run out.

    Must be started inside a running event loop. While it does not run it costs nothing. To start it again touches no
    timer of the loop: the one that there is finds out. uvloop calls timers before it reads descriptors; hence the last
    look of `Patience.ends`, one turn of the loop after the time is over.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._patience: Patience | None = None  # while it runs
        self._timer: asyncio.TimerHandle | None = None

    @property
    def spent_s(self) -> float:
        """Seconds of this process's presence since the start; 0 while the timer does not run."""
        return 0.0 if self._patience is None else self._patience.spent_s

    def start(self, seconds: float) -> None:
        """Begin, or begin again, with so many seconds."""
        self._patience = Patience(seconds, asyncio.get_running_loop().time)
        if self._timer is None or seconds < _LOOK_S:
            self._arm(self._patience)

    def allow(self, seconds: float) -> None:
        """Let it take so many seconds in all, those that have passed included. Does nothing while it does not run."""
        if self._patience is not None:
            self._patience.seconds = seconds
            if seconds < _LOOK_S:
                self._arm(self._patience)

    def pause(self) -> None:
        """Expect nothing for now; the timer of the loop is left to end by itself."""
        self._patience = None

    def stop(self) -> None:
        """Expect nothing, and leave no timer."""
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
        else:
            self._arm(self._patience)


@asynccontextmanager
async def patiently(seconds: float) -> AsyncIterator[None]:
    """Raise `TimeoutError`, as `asyncio.timeout` does, when what is done inside takes so long in this process's
    presence."""
    async with asyncio.timeout(None) as timeout:
        timer = PatientTimer(lambda: timeout.reschedule(asyncio.get_running_loop().time()))
        timer.start(seconds)
        try:
            yield
        finally:
            timer.stop()


async def wait_patiently(futures: Iterable[asyncio.Future[None]], seconds: float) -> None:
    """Wait until all are done, or for so many seconds in this process's presence."""
    with suppress(TimeoutError):
        async with patiently(seconds):
            await asyncio.wait(futures)
