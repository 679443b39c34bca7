"""The bounds on request bodies: size and time of each, and one budget of bytes for all bodies that the server holds."""

import asyncio
from collections.abc import Callable

from numaserve.server.app.middleware.heap import HeapTrimmer
from numaserve.server.http.errors import ApiError, client_left, rate_limited, too_large, too_slow
from numaserve.server.http.limits import ApiLimits
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Bytes of each body that do not count. A connection may buffer as many anyway, and a chat needs fewer: clients with
# large bodies can use up the budget, but cannot shut out clients with small ones.
FREE_BYTES = 1 << 16


class BodyLimit:
    """The layer that refuses bodies which are too large, by announced or received length, too slow, or over budget."""

    def __init__(self, app: ASGIApp, limits: ApiLimits) -> None:
        self._app = app
        self._limits = limits
        self._left = limits.max_bytes_in_flight
        self._trimmer = HeapTrimmer()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a `receive` that raises `ApiError` when the body exceeds a limit."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        length = int(announced[:20]) if announced.isdigit() else 0
        body = _Body(receive, length, self._limits.max_body_bytes, self._limits.body_timeout_seconds, self._take)
        try:
            await self._app(scope, body.receive, send)
        finally:
            # Not earlier: the request holds the raw body until it is answered.
            self._give_back(body.counted)

    def _take(self, count: int) -> None:
        if count > self._left:
            # Not 503, from which routers and load balancers infer an unhealthy server.
            message = (
                f"The server's memory for request bodies is full (limit {self._limits.max_bytes_in_flight} bytes)."
            )
            raise rate_limited(f"{message} Retry after 1 s.", close=True)
        self._left -= count

    def _give_back(self, count: int) -> None:
        self._left += count
        self._trimmer.released(count)


class _Body:
    """The body of one request while it arrives. `counted` of its bytes are taken from the server's budget."""

    def __init__(
        self, receive: Receive, announced: int, max_bytes: int, timeout_seconds: float, take: Callable[[int], None]
    ) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._take = take
        self._too_large = announced > max_bytes
        self._deadline = asyncio.get_running_loop().time() + timeout_seconds
        self._received = 0
        self._complete = False
        self.counted = 0

    async def receive(self) -> Message:
        """Return the next message.

        Raises `ApiError` if the body is too large, too slow or cut off, or if the budget is used up.
        """
        if self._complete:
            return await self._receive()
        if self._too_large:
            raise self._beyond_limit()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise too_slow("The request body") from None
        if message["type"] == "http.disconnect":
            # Raised here, because the exceptions of Starlette and FastAPI form a reference cycle that keeps the body.
            raise client_left()
        self._received += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._received > self._max_bytes:
            raise self._beyond_limit()
        # Count received bytes, not announced ones: otherwise an announcement alone could use up the budget.
        more = self._received - FREE_BYTES - self.counted
        if more > 0:
            self._take(more)
            self.counted += more
        return message

    def _beyond_limit(self) -> ApiError:
        return too_large(
            f"The request body exceeds the limit of {self._max_bytes} bytes. Shorten the request.", close=True
        )
