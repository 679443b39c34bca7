"""What a connection may cost before it has sent a request: uvicorn itself bounds neither headers nor connections."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from numaserve.server.api.errors import ApiError
from numaserve.server.cli.descriptors import max_connections
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


@dataclass(frozen=True)
class ConnectionLimits:
    """Bounds on a connection until a request's headers are complete; from there on the application has its own."""

    connections: int = field(default_factory=max_connections)
    head_bytes: int = 1 << 16  # request line and headers
    head_seconds: float = 30.0  # for them to arrive


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with `limits`. (Its other one, over h11, bounds headers, and costs several times the time.)"""

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._limits = limits
        self._head_bytes = 0
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            message = "The server has too many connections. Try again later."
            self._refuse(ApiError(429, message, code="rate_limit_exceeded", headers={"Retry-After": "1"}))
            return
        self._head_timer = self.loop.call_later(self._limits.head_seconds, self._too_slow)

    def data_received(self, data: bytes) -> None:
        """Parse; give up on a head that has no end."""
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > self._limits.head_bytes:
            self._refuse(ApiError(431, f"The request's headers are larger than {self._limits.head_bytes} bytes."))
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.head_seconds, self._too_slow)

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Everything but the body is here."""
        self._in_head = False
        self._head_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        self._refuse(ApiError(408, "The request's headers did not arrive in time.", code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        self._stop_timer()
        if self.cycle is None or self.cycle.response_complete:
            response = error.response()
            response.headers["Connection"] = "close"
            lines = [b"HTTP/1.1 %d \r\n" % response.status_code]
            lines += [name + b": " + value + b"\r\n" for name, value in response.raw_headers]
            self.transport.write(b"".join((*lines, b"\r\n", bytes(response.body))))
        self.transport.close()
