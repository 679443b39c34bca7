"""The id of a request, its line in the log, and the last handler of errors."""

import logging

from numaserve.server.http.access_log import RequestRecord, request_id_of
from numaserve.server.http.errors import internal_error
from numaserve.server.http.fields.unknown_fields import HEADER as IGNORED_HEADER
from numaserve.server.http.left_out import HEADER as LEFT_OUT_HEADER
from numaserve.server.http.left_out import header as left_out
from numaserve.server.http.route_names import route_of
from numaserve.server.surfaces.errors import error_of
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_logger = logging.getLogger("numaserve.api")


class RequestScope:
    """The layer that gives a request its id and log line, and answers 500 for uncaught errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; all connections are HTTP."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(request_id_of(scope), scope["method"])
        scope.setdefault("state", {})["record"] = record

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = record.request_id
                if record.unknown_fields is not None and record.unknown_fields.count:
                    headers[IGNORED_HEADER] = record.unknown_fields.header()
                if record.left_out:
                    headers[LEFT_OUT_HEADER] = left_out(record.left_out)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            _logger.exception("request failed", extra={"fields": {"request_id": record.request_id}})
            if record.status:
                raise  # too late for an answer: the connection must break so that the client notices
            await error_of(scope, internal_error())(scope, receive, send_with_id)
        finally:
            record.write(route_of(scope))
