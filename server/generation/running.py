"""The running requests, by owner and request id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from numaserve.server.engine.types import Aborted
from numaserve.server.http.errors import bad_request


class RunningRequest:
    """A running request, from the check that the engine is ready to its end."""

    def __init__(self, leave: Callable[[RunningRequest], None]) -> None:
        self._leave = leave
        self._end: Callable[[], Awaitable[None]] | None = None
        self.aborted = False

    def admitted(self, end: Callable[[], Awaitable[None]]) -> None:
        """Note that the request has sequences; `end` ends them."""
        self._end = end

    async def abort(self) -> None:
        """End the request, whether it has sequences yet or not."""
        self.aborted = True
        if self._end is not None:
            await self._end()

    def check(self) -> None:
        """Raise `Aborted` where the request was aborted before it had sequences."""
        if self.aborted:
            raise Aborted

    def leave(self) -> None:
        """Remove the request and its `end` callback. May be called more than once."""
        self._end = None  # refers to this request
        self._leave(self)


class RunningRequests:
    """All running requests. The requests of one owner are not visible to another."""

    def __init__(self) -> None:
        self._by_owner: dict[bytes, dict[str, RunningRequest]] = {}

    def enter(self, owner: bytes, request_id: str) -> RunningRequest:
        """Add a request. Raises `ApiError` where `owner` has a running request of the same id."""
        if request_id in self._by_owner.get(owner, ()):
            raise bad_request(
                "A request with this id is already running. Choose another id.", "rid", "request_id_taken"
            )

        def leave(leaving: RunningRequest) -> None:
            of_owner = self._by_owner.get(owner, {})
            if of_owner.get(request_id) is leaving:  # another request may have the id by now
                del of_owner[request_id]
            if not of_owner:
                self._by_owner.pop(owner, None)

        running = RunningRequest(leave)
        self._by_owner.setdefault(owner, {})[request_id] = running
        return running

    async def abort(self, owner: bytes, request_id: str | None) -> int:
        """Abort the owner's request with this id, or all requests of the owner; return their number."""
        of_owner = self._by_owner.get(owner, {})
        ending = [each for known, each in of_owner.items() if request_id in (None, known) and not each.aborted]
        for each in ending:
            await each.abort()
        return len(ending)
