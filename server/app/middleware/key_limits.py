"""The limits of API keys."""

from typing import cast

from numaserve.server.generation.context import ApiContext
from numaserve.server.http.access_log import RequestRecord
from numaserve.server.http.auth.keys import OPEN_PATHS, Callers
from numaserve.server.http.auth.quota import OverLimit, Quota
from numaserve.server.http.errors import ApiError, rate_limited
from numaserve.server.surfaces.errors import error_of
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Requests to these paths run no model and count for no limit. All other paths count, including routes added later.
FREE_PATHS = OPEN_PATHS | {
    "/abort_request",
    "/api/show",
    "/detokenize",
    "/flush_cache",
    "/reset_prefix_cache",
    "/tokenize",
    "/v1/messages/count_tokens",
}


class KeepLimits:
    """The layer that enforces the limits of API keys.

    A request over a limit of its key is refused before its body is read. Other requests are counted until they end, and
    their answers report the remaining limits.
    """

    def __init__(self, app: ASGIApp, context: ApiContext, keys: Callers) -> None:
        self._app = app
        self._metrics = context.metrics
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on or answer 429."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] in FREE_PATHS:
            await self._app(scope, receive, send)
            return
        account, record = self._keys.account(scope["headers"]), cast(RequestRecord, scope["state"]["record"])
        quota = account.quota
        try:
            use = quota.enter(record.tokens_used)
        except OverLimit as over:
            self._metrics.request_over_limit(account.name)
            await error_of(scope, _refused(over, quota))(scope, receive, send)
            return
        try:
            await self._app(scope, receive, _with_headers(send, quota) if quota.has_rates else send)
        finally:
            quota.leave(use)


def _refused(over: OverLimit, quota: Quota) -> ApiError:
    error = rate_limited(str(over), retry_after=over.retry_after, refusal="over_limit")
    error.headers = {**(error.headers or {}), **quota.headers()}
    return error


def _with_headers(send: Send, quota: Quota) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(quota.headers())
        await send(message)

    return send_with_headers
