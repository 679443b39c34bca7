"""The trace to which a request belongs. https://www.w3.org/TR/trace-context/"""

import re

from numaserve.server.engine.views.traces import TRACE_PARENT
from starlette.types import ASGIApp, Receive, Scope, Send

# A later version of the format may append fields, which are ignored.
_PARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-.{0,200})?")


class TraceParent:
    """The layer that sets `TRACE_PARENT` for the task of a request; each request has its own task."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on. An invalid or repeated `traceparent` is ignored."""
        if scope["type"] == "http":
            given = [value for name, value in scope["headers"] if name == b"traceparent"]
            if len(given) == 1 and _PARENT.fullmatch(given[0]):
                TRACE_PARENT.set(given[0].decode("ascii", "replace"))
        await self._app(scope, receive, send)
