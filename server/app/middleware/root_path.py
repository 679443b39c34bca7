"""The path prefix under which a proxy exposes the server."""

from starlette.types import ASGIApp, Receive, Scope, Send


class StripRootPath:
    """The layer that strips the prefix from the path of a request, before any other code reads the path.

    Some proxies strip the prefix themselves, so a path without it stays unchanged. ASGI's `root_path` was rejected: it
    leaves the path whole. All code that compares paths, such as the check of keys, would have to strip the prefix
    exactly as the router does.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http" and f"{scope['path']}/".startswith(self._prefix + "/"):
            scope = {**scope, "path": scope["path"].removeprefix(self._prefix) or "/"}
        await self._app(scope, receive, send)
