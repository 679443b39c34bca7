"""Waiting for one of a few things, by turns of those who wait."""

import asyncio
from collections import deque


class FairSemaphore:
    """Gives out `count` permits; for one event loop.

    Those who wait are told apart by whose they are: these take turns, and what waits for one of them is first come,
    first served. So a thousand waiting for one are, for another, as one. (A semaphore would be first come, first served
    for all.)
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # in order of turns

    async def acquire(self, whose: str) -> None:
        """Wait for a permit."""
        if self._free:
            self._free -= 1
            return
        permit = asyncio.get_running_loop().create_future()
        own = self._waiting.setdefault(whose, deque())
        own.append(permit)
        try:
            await permit
        except asyncio.CancelledError:
            if permit.cancelled():
                own.remove(permit)
                if not own:
                    self._waiting.pop(whose, None)
            else:  # it came too late
                self.release()
            raise

    def release(self) -> None:
        """Give a permit back, to whoever's turn it is."""
        for whose, own in self._waiting.items():
            permit = next((each for each in own if not each.done()), None)
            if permit is not None:
                own.remove(permit)
                del self._waiting[whose]
                if own:
                    self._waiting[whose] = own  # behind the others
                permit.set_result(None)
                return
        self._free += 1
