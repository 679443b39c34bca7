"""The time limit of a request."""

import re

from numaserve.server.http.access_log import RequestRecord
from numaserve.server.http.errors import bad_request
from numaserve.server.http.limits import ApiLimits
from numaserve.server.surfaces.errors import error_of
from starlette.types import ASGIApp, Receive, Scope, Send

TIMEOUT_HEADER = b"x-request-timeout"
_SECONDS = re.compile(rb"\d{1,7}(\.\d{1,9})?")


class RequestTimeout:
    """The layer that records the time limit of a request: X-Request-Timeout, at most the operator's limit."""

    def __init__(self, app: ASGIApp, limits: ApiLimits) -> None:
        self._app = app
        self._longest = limits.request_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 400 if the header is no number of seconds."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record: RequestRecord = scope["state"]["record"]
        record.timeout = self._longest
        given = next((value for name, value in scope["headers"] if name == TIMEOUT_HEADER), None)
        if given is not None:
            seconds = float(given) if _SECONDS.fullmatch(given) else 0.0
            if seconds == 0.0:
                refused = bad_request("X-Request-Timeout must be a number of seconds above 0, such as 30 or 0.5.", None)
                await error_of(scope, refused)(scope, receive, send)
                return
            record.timeout = seconds if self._longest is None else min(seconds, self._longest)
        await self._app(scope, receive, send)
