"""The bound on the number of headers."""

from numaserve.server.http.errors import too_many_headers
from numaserve.server.http.limits import ApiLimits
from numaserve.server.surfaces.errors import error_of
from starlette.types import ASGIApp, Receive, Scope, Send


class HeaderLimit:
    """The layer that refuses too many headers, because every lookup of a header scans all of them."""

    def __init__(self, app: ASGIApp, limits: ApiLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on or answer 431."""
        if scope["type"] != "http" or len(scope["headers"]) <= self._limits.max_headers:
            await self._app(scope, receive, send)
            return
        await error_of(scope, too_many_headers(self._limits.max_headers))(scope, receive, send)
