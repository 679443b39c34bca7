"""A semaphore that serves waiting callers round-robin."""

import asyncio
from collections import Counter, deque


class FairSemaphore:
    """Hands out `count` permits, at most `each` of them to one caller; for one event loop.

    Callers are served round-robin, and the tasks of one caller in order of arrival. A thousand waiting tasks of one
    caller therefore delay another caller no more than one task would. A plain semaphore would serve all tasks in order
    of arrival.
    """

    def __init__(self, count: int, each: int | None = None) -> None:
        self._free = count
        self._each = each or count
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # in round-robin order

    async def acquire(self, whose: str) -> None:
        """Wait for a permit."""
        if self._free and self._may_have(whose):
            self._grant(whose)
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
                self.release(whose)
            raise

    def release(self, whose: str) -> None:
        """Return a permit of the caller; it goes to the next waiting caller that may have one."""
        self._free += 1
        self._held[whose] -= 1
        if not self._held[whose]:
            del self._held[whose]
        for other, own in self._waiting.items():
            permit = next((each for each in own if not each.done()), None)
            if permit is not None and self._may_have(other):
                own.remove(permit)
                del self._waiting[other]
                if own:
                    self._waiting[other] = own  # after the other callers
                self._grant(other)
                permit.set_result(None)
                return

    def _may_have(self, whose: str) -> bool:
        return self._held[whose] < self._each

    def _grant(self, whose: str) -> None:
        self._free -= 1
        self._held[whose] += 1
