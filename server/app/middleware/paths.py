"""The normalization of requests: HEAD is served as GET, and a slash at the end of a path is removed."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Paths:
    """The layer that maps ``/v1/models/`` to ``/v1/models``, and answers HEAD as GET without the body.

    Redirects were rejected: their target would be built from the client's Host header, and clients do not follow them
    with a POST. The layer precedes all code that reads the path, so that all code sees the router's path.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its normalized path and method."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        # The raw path: an escaped slash is part of a name.
        if (
            len(path) > 1
            and path.endswith("/")
            and not path.endswith("//")
            and scope.get("raw_path", b"/").endswith(b"/")
        ):
            scope["path"] = path[:-1]
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        # A copy: the HTTP server still needs the original method.
        await self._app({**scope, "method": "GET"}, receive, send_without_body)
