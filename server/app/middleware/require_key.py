"""The check of API keys."""

from collections.abc import Callable, Container

from numaserve.server.http.auth.keys import Callers
from numaserve.server.http.errors import unauthorized
from numaserve.server.metrics.labels import Refusal
from numaserve.server.surfaces.errors import error_of
from starlette.types import ASGIApp, Receive, Scope, Send


class RequireKey:
    """The layer that refuses every route, known or not, without an accepted key.

    Only the probes and the files of the page are open, for GET and HEAD.
    """

    def __init__(
        self, app: ASGIApp, keys: Callers, refused: Callable[[Refusal], None], open_paths: Container[str]
    ) -> None:
        self._app = app
        self._keys = keys
        self._refused = refused
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on or answer 401."""
        # HEAD has already become GET.
        if scope["type"] != "http" or (scope["method"] == "GET" and scope["path"] in self._open_paths):
            await self._app(scope, receive, send)
            return
        if self._keys.accept(scope["headers"]):
            scope["state"]["record"].key_name = self._keys.account(scope["headers"]).name
            await self._app(scope, receive, send)
            return
        self._refused("unauthorized")
        await error_of(scope, unauthorized())(scope, receive, send)
