"""The check of API keys."""

from numaserve.server.api.context import ApiContext
from numaserve.server.api.errors import unauthorized
from numaserve.server.api.surfaces import error_of
from starlette.types import ASGIApp, Receive, Scope, Send


class RequireKey:
    """Refuses every route, known or not, without an accepted key; only the probes and the page's own files are open."""

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on or answer 401."""
        keys = self._context.api_keys
        if scope["type"] != "http" or keys is None or scope["path"] in self._context.open_paths:
            await self._app(scope, receive, send)
            return
        if keys.accept(scope["headers"]):
            scope["state"]["record"].key_name = keys.account(scope["headers"]).name
            await self._app(scope, receive, send)
            return
        self._context.metrics.request_refused("unauthorized")
        await error_of(scope, unauthorized())(scope, receive, send)
