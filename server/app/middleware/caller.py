"""The layer that records the caller of a request, for code that divides its work among callers."""

from numaserve.server.generation.context import ApiContext
from numaserve.server.text.caller import CALLER
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send


class SetCaller:
    """The layer that sets `CALLER` for the task of a request; each request has its own task."""

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http" and scope["path"] not in self._context.open_paths:  # open paths need no caller
            CALLER.set(self._context.client_of(HTTPConnection(scope)))
        await self._app(scope, receive, send)
