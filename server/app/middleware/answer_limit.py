"""The spools of answers, and one budget of bytes for all answers that clients have not read yet."""

from numaserve.server.app.middleware.heap import HeapTrimmer
from numaserve.server.http.errors import rate_limited
from numaserve.server.http.limits import ApiLimits
from numaserve.server.http.spool import Spool, set_spool
from starlette.types import ASGIApp, Receive, Scope, Send


class AnswerLimit:
    """The layer that gives each request its spool, and ends the spool with the request."""

    def __init__(self, app: ASGIApp, limits: ApiLimits) -> None:
        self._app = app
        self._limit = self._left = limits.max_bytes_unread
        self._trimmer = HeapTrimmer()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        spool = Spool(self._take, self._give_back)
        set_spool(scope, spool)
        try:
            await self._app(scope, receive, send)
        finally:
            self._trimmer.released(spool.size)
            spool.close()

    def _take(self, count: int) -> None:
        if count > self._left:
            raise rate_limited(
                f"The server's space for unread answers is full (limit {self._limit} bytes). Retry after 1 s."
            )
        self._left -= count

    def _give_back(self, count: int) -> None:
        self._left += count
