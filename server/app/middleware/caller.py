"""Says whose request it is to what divides its work among callers."""

from numaserve.server.generation.context import ApiContext
from numaserve.server.text.caller import CALLER
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send


class SetCaller:
    """Sets `CALLER` for the task of a request, which is one of its own."""

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http" and scope["path"] not in self._context.open_paths:  # where nobody need say who asks
            CALLER.set(self._context.client_of(HTTPConnection(scope)))
        await self._app(scope, receive, send)
