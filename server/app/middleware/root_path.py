"""The prefix under which a proxy shows the server."""

from starlette.types import ASGIApp, Receive, Scope, Send


class StripRootPath:
    """Takes the prefix off the path of a request, once, before anything else looks at it.

    Some proxies take it off themselves: a path without it stays as it is. ASGI has `root_path` for this, which leaves
    the path whole: then everybody who compares paths, the check of keys among them, has to take the prefix off in the
    router's way.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http" and f"{scope['path']}/".startswith(self._prefix + "/"):
            scope = {**scope, "path": scope["path"].removeprefix(self._prefix) or "/"}
        await self._app(scope, receive, send)
