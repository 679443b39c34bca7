"""The requests that wait for text or get it, by whose they are and by their ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from numaserve.server.engine.types import Aborted
from numaserve.server.http.errors import bad_request


class RunningRequest:
    """One of them, from its first look at the engine to its end."""

    def __init__(self, leave: Callable[[RunningRequest], None]) -> None:
        self._leave = leave
        self._end: Callable[[], Awaitable[None]] | None = None
        self.aborted = False

    def admitted(self, end: Callable[[], Awaitable[None]]) -> None:
        """Note that it has sequences, which `end` ends."""
        self._end = end

    async def abort(self) -> None:
        """End it, whether it has sequences by now or not."""
        self.aborted = True
        if self._end is not None:
            await self._end()

    def check(self) -> None:
        """Raise `Aborted` where it was to end before it had begun."""
        if self.aborted:
            raise Aborted

    def leave(self) -> None:
        """Forget it, and what ends it. May be called more than once."""
        self._end = None  # which refers to this request
        self._leave(self)


class RunningRequests:
    """All of them. One owner's are not visible to another."""

    def __init__(self) -> None:
        self._by_owner: dict[bytes, dict[str, RunningRequest]] = {}

    def enter(self, owner: bytes, request_id: str) -> RunningRequest:
        """Note a request. Raises `ApiError` where `owner` has one of that id."""
        if request_id in self._by_owner.get(owner, ()):
            raise bad_request(
                "A request with this id is already running. Choose another id.", "rid", "request_id_taken"
            )

        def leave(leaving: RunningRequest) -> None:
            of_owner = self._by_owner.get(owner, {})
            if of_owner.get(request_id) is leaving:  # the id may be another's by now
                del of_owner[request_id]
            if not of_owner:
                self._by_owner.pop(owner, None)

        running = RunningRequest(leave)
        self._by_owner.setdefault(owner, {})[request_id] = running
        return running

    async def abort(self, owner: bytes, request_id: str | None) -> int:
        """End the owner's request of that id, or all of the owner's; how many they were."""
        of_owner = self._by_owner.get(owner, {})
        ending = [each for known, each in of_owner.items() if request_id in (None, known) and not each.aborted]
        for each in ending:
            await each.abort()
        return len(ending)
