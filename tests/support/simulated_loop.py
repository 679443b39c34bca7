"""An event loop in which time passes only by jumping to the next timer."""

import asyncio
import selectors
from collections.abc import Callable, Mapping
from typing import Any

_READ_S = 1e-3  # after the timers of a process that is back
_ORDER_S = 1e-9


class Stuck(Exception):
    """Something is awaited, and nothing is left that could happen."""


class JumpSelector(selectors.BaseSelector):
    """Never waits: where there is nothing to run, it is as late as the next timer at once.

    `turn` is called in every turn of the loop, between two callbacks of it.
    """

    def __init__(self, turn: Callable[[], None]) -> None:
        self.now = 0.0  # seconds
        self._turn = turn
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Only the loop's own descriptor comes here, as a number."""
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, fileobj, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turn()
        if timeout is None:
            raise Stuck("somebody waits, and nothing is left that could happen")
        self.now += max(0.0, timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop over a `JumpSelector`, for coroutines that use no descriptors and no threads.

    The process of the loop may be absent, as one that is stopped is: its timers are then called when it is back, before
    what has arrived meanwhile is read, as uvloop does it. What happens outside of the process goes on.
    """

    def __init__(self, turn: Callable[[], None] = lambda: None) -> None:
        self._jumps = JumpSelector(turn)
        super().__init__(self._jumps)
        self._back = 0.0  # the time until which it is absent
        self._held = 0  # calls so far, for an order among those of the same time
        self.absent_s = 0.0  # in all

    @property
    def is_absent(self) -> bool:
        """Whether the process is absent now."""
        return self.time() < self._back

    def presence(self) -> float:
        """Seconds in which the process was not absent."""
        return max(self.time(), self._back) - self.absent_s

    def go_away(self, seconds: float) -> None:
        """Be absent, or longer absent, from now on."""
        back = max(self._back, self.time() + seconds)
        self.absent_s += back - max(self._back, self.time())
        self._back = back

    def call_outside_at(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """Call something that happens outside of the process."""
        super().call_at(when, callback, *args)

    def call_arriving_at(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """Have something arrive, which is read when the process is there."""
        self._call_present_at(when, _READ_S, callback, args)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self._call_present_at(when, 0.0, callback, args, context)

    def _call_present_at(
        self, when: float, after_s: float, callback: Callable[..., object], args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Call it at that time, or so long after the process is back, in the order of their times."""

        def call() -> None:
            if self.is_absent:
                self._held += 1
                again = self._back + after_s + self._held * _ORDER_S
                super(SimulatedLoop, self).call_at(again, call_again, context=context)
            else:
                callback(*args)

        def call_again() -> None:
            if not handle.cancelled():
                call()

        handle = super().call_at(when, call, context=context)
        return handle

    def time(self) -> float:
        return self._jumps.now

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        """There are no other threads, and nothing has to wake a selector that does not wait."""
        return self.call_soon(callback, *args, context=context)
