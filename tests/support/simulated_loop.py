"""An event loop in which time passes only by jumping to the next timer."""

import asyncio
import selectors
from collections.abc import Callable, Mapping
from typing import Any


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
    """An event loop over a `JumpSelector`, for coroutines that use no descriptors and no threads."""

    def __init__(self, turn: Callable[[], None] = lambda: None) -> None:
        self._jumps = JumpSelector(turn)
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        """There are no other threads, and nothing has to wake a selector that does not wait."""
        return self.call_soon(callback, *args, context=context)
