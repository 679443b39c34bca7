"""The trace that a request is a part of. https://www.w3.org/TR/trace-context/"""

import re

from numaserve.server.engine.views.traces import TRACE_PARENT
from starlette.types import ASGIApp, Receive, Scope, Send

# A later version may have more behind it, which is not looked at.
_PARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-.{0,200})?")


class TraceParent:
    """Sets `TRACE_PARENT` for the task of a request, which is one of its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on. A `traceparent` that is none, or one of several, is left out."""
        if scope["type"] == "http":
            given = [value for name, value in scope["headers"] if name == b"traceparent"]
            if len(given) == 1 and _PARENT.fullmatch(given[0]):
                TRACE_PARENT.set(given[0].decode("ascii", "replace"))
        await self._app(scope, receive, send)
