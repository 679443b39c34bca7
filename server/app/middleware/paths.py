"""Two ways of asking for the same thing: HEAD where there is GET, and a path with a slash at its end."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Paths:
    """Makes one path of ``/v1/models`` and ``/v1/models/``, and answers HEAD as GET without the body.

    Not by a redirect, whose target would be built from the client's Host header, and which clients do not follow with a
    POST. Before everything that looks at the path, so that nothing can see another one than the router.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on under its one name."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        # The path as it was sent: an escaped slash is a character of a name.
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

        # A copy: the HTTP server goes by the method of its own.
        await self._app({**scope, "method": "GET"}, receive, send_without_body)
