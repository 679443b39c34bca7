"""A semaphore that serves waiting callers round-robin."""

import asyncio
from collections import deque


class FairSemaphore:
    """Hands out `count` permits; for one event loop.

    Callers are served round-robin, and the tasks of one caller in order of arrival. A thousand waiting tasks of one
    caller therefore delay another caller no more than one task would. A plain semaphore would serve all tasks in order
    of arrival.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # in round-robin order

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
            else:  # the permit was granted too late
                self.release()
            raise

    def release(self) -> None:
        """Return a permit; it goes to the next waiting caller."""
        for whose, own in self._waiting.items():
            permit = next((each for each in own if not each.done()), None)
            if permit is not None:
                own.remove(permit)
                del self._waiting[whose]
                if own:
                    self._waiting[whose] = own  # after the other callers
                permit.set_result(None)
                return
        self._free += 1
