"""The bounds on connections. uvicorn itself bounds neither their number nor the data that arrives on one."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
from numaserve.server.common.patience import PatientTimer
from numaserve.server.connection.client_transport import ClientTransport
from numaserve.server.connection.descriptors import max_connections
from numaserve.server.http.errors import ApiError, bad_request, rate_limited, too_many_headers, too_slow
from numaserve.server.surfaces.errors import error_response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle


@dataclass(frozen=True)
class ConnectionLimits:
    """The bounds on a connection. The application, which knows the client, bounds the bodies of requests."""

    connections: int = field(default_factory=max_connections)
    keep_alive_seconds: int = 120  # between an answer and the next request
    head_bytes: int = 1 << 16  # request line and headers
    head_fields: int = 256  # the application allows fewer, and logs its refusals
    head_seconds: float = 30.0  # for the head to arrive
    framing_bytes: int = 1 << 16  # chunk sizes, extensions and trailers of a body, beyond its bytes of content
    requests_ahead: int = 16  # pipelined requests before the answers to earlier ones, `head_bytes` in total
    linger_seconds: float = 5.0  # for the rest of a request that is already answered
    linger_bytes: int = 1 << 20  # of such a rest
    write_seconds: float | None = 60.0  # without any byte of an answer being read; None: no limit


def _parser_of(protocol: HttpToolsProtocol) -> httptools.HttpRequestParser:
    """Return a new parser, made as uvicorn does."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol with `limits`. (uvicorn's h11 protocol bounds headers, but is several times slower.)

    A limit is enforced in one of three ways. Before an answer has begun, the client gets an error and the connection is
    closed. After requests that are still to be answered, the connection is closed once their answers are sent. Data
    that follows on a closing connection is discarded, within bounds.
    """

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._limits = limits
        self._client: ClientTransport
        self._active: RequestResponseCycle | None = None  # being answered; `cycle` is that of the newest request
        self._deaf = False  # further data of this client is discarded
        self._in_message = False  # between a request's first and last byte
        self._in_head = True  # from the last byte of a request to the body of the next
        self._ended = False  # a request ended in the current read
        self._head_bytes = 0
        self._content = 0  # bytes of bodies in the current read
        self._framing_left = limits.framing_bytes
        self._bytes_ahead = 0
        self._head_timer: PatientTimer | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, unless there are too many."""
        limits = self._limits
        self._client = ClientTransport(
            transport,
            lambda: self._in_message,
            linger_seconds=limits.linger_seconds,
            linger_bytes=limits.linger_bytes,
            write_seconds=limits.write_seconds,
        )
        super().connection_made(cast(asyncio.Transport, self._client))
        if len(self.connections) > limits.connections:
            self._refuse(
                rate_limited(f"The server has too many connections (limit {limits.connections}). Retry later.")
            )
            return
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        """Parse the data, and count what was parsed."""
        if self._deaf or self._client.is_closing():
            self._client.discard(len(data))
            return
        was_in_head, was_ahead = self._in_head, bool(self.pipeline)
        self._content, self._ended = 0, False
        try:
            self._feed(data)
        except (httptools.HttpParserError, ApiError) as error:
            self._in_message = True  # the end of a malformed request is unknown
            cause = error.__context__ if isinstance(error, httptools.HttpParserError) else error
            self._refuse(cause if isinstance(cause, ApiError) else bad_request("The request is not valid HTTP.", None))
            return
        if self._client.is_closing():
            return
        # A read that ends a request does not count for the next request: the size of a read is itself bounded.
        if self._in_head:
            self._count_head(0 if self._ended else len(data))
        elif self._is_answered():
            self._client.discard(len(data))
        elif not was_in_head and not self._ended:
            self._count_framing(len(data) - self._content)
        if self.pipeline:
            self._count_ahead(len(data) if was_ahead else 0)

    def eof_received(self) -> None:
        """Handle the end of the client's data; the transport closes when the client has read the answers."""
        self._client.watch_writes()

    def pause_writing(self) -> None:
        """Watch the client, which reads more slowly than the server writes."""
        super().pause_writing()
        self._client.watch_writes()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that belongs to the closed connection."""
        self._stop_head_timer()
        self._unset_keepalive_if_required()
        self._client.lost()
        if self._active is not None:  # with pipelined requests, uvicorn would notify only the last one
            self._leave(self._active)
        super().connection_lost(exc)
        # Each request refers to its connection. References back would be cycles, freed only by a full collection.
        self.pipeline.clear()
        self._forget()

    def on_message_begin(self) -> None:
        """Handle the first byte of a request."""
        self._unset_keepalive_if_required()
        self._in_message = True
        if len(self.pipeline) >= self._limits.requests_ahead:
            raise rate_limited(
                f"The connection has {len(self.pipeline)} unanswered requests (limit "
                f"{self._limits.requests_ahead}). Wait for responses before sending more."
            )
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; drop trailers, which would be taken for headers."""
        if not self._in_head:
            return
        if len(self.headers) >= self._limits.head_fields:
            raise too_many_headers(self._limits.head_fields)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Handle a complete head."""
        if self.parser.should_upgrade():
            return  # the parser stops here; parsing resumes without the upgrade
        self._in_head = False
        self._framing_left = self._limits.framing_bytes
        self._stop_head_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Handle a piece of the body."""
        self._content += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Handle the last byte of a request."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._in_message, self._in_head, self._ended = False, True, True
        self._head_bytes = 0
        if self._is_answered():
            self._client.stop_lingering()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
            self._forget()

    def on_response_complete(self) -> None:
        """Start the next request or wait for it, or wait for the end of a request that was answered early."""
        super().on_response_complete()
        if self._client.is_closing() or not self._is_answered():
            return
        self._client.watch_writes()
        if self._in_head:
            self._forget()
        else:
            self._unset_keepalive_if_required()
            self.cycle.body.clear()
            self._client.linger()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active = cycle
        super()._start_asgi_task(cycle, app)

    def _is_answered(self) -> bool:
        return self._active is None or self._active.response_complete

    def _forget(self) -> None:
        # An idle connection holds no memory of its last request.
        self._active = None
        self.cycle = None  # type: ignore[assignment]
        if not self._in_message:
            self.headers = []
            self.scope = None  # type: ignore[assignment]

    @staticmethod
    def _leave(cycle: RequestResponseCycle) -> None:
        cycle.disconnected = True
        cycle.message_event.set()

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade() + data[upgrade.args[0] :]

    def _without_upgrade(self) -> bytes:
        """Return the head of the request without its request for another protocol.

        A server may ignore such a request, and must ignore an unknown protocol: Java's client asks for h2c in every
        request. The parser cannot ignore it: it takes all that follows, the body included, for the other protocol.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise ApiError(405, "This server is not a proxy. Send requests with a path instead of CONNECT.")
        lines = [b"%s %s HTTP/1.1" % (method, self.url)]
        for name, value in self.headers:
            tokens = value.split(b",") if name == b"connection" else [value]
            if name != b"upgrade":
                lines.append(name + b": " + b",".join(each for each in tokens if each.strip().lower() != b"upgrade"))
        self.parser = _parser_of(self)
        return b"\r\n".join((*lines, b"", b""))

    def _count_head(self, count: int) -> None:
        self._head_bytes += count
        if self._head_bytes > self._limits.head_bytes:
            self._in_message = True
            self._refuse(
                ApiError(
                    431, f"The request's headers are larger than {self._limits.head_bytes} bytes. Send smaller headers."
                )
            )
        elif self._in_message:
            self._start_head_timer()

    def _count_framing(self, count: int) -> None:
        """Refuse a body whose framing (chunk sizes and trailers) exceeds its content by more than an allowance."""
        left = self._framing_left + self._content - count
        self._framing_left = min(left, self._limits.framing_bytes)
        if left < 0:
            self._refuse(
                bad_request(
                    "The chunk headers and trailers of the body are larger than its content. Send larger chunks.", None
                )
            )

    def _count_ahead(self, count: int) -> None:
        self._bytes_ahead = self._bytes_ahead + count if count else 0
        if self._bytes_ahead > self._limits.head_bytes:
            self._close_after_answers()
        else:
            self.flow.resume_reading()  # uvicorn pauses reading, and would not notice that the client disconnects

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = PatientTimer(self._too_slow)  # one per head: the timer refers to this object
            self._head_timer.start(self._limits.head_seconds)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.stop()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        self._refuse(too_slow("The request's headers"))

    def _refuse(self, error: ApiError) -> None:
        """Answer the arriving request with an error if possible, and close the connection."""
        active = self._active
        in_own_body = active is not None and active is self.cycle and not self._in_head
        if active is not None and not active.response_complete:
            if not in_own_body or active.response_started:
                self._close_after_answers()
                return
            self._leave(active)
        self._stop_head_timer()
        self._deaf = True
        if self._in_head or not self._is_answered():
            self._write_error(error)
        self.transport.close()

    def _close_after_answers(self) -> None:
        self._stop_head_timer()
        self._deaf = True
        if self.pipeline and self._in_message and not self._in_head:
            self.pipeline.popleft()  # its body will not be complete
        last = self.pipeline[0][0] if self.pipeline else self._active
        if last is not None:
            last.keep_alive = False
        self._in_message = True  # the end of the request is unknown
        self.flow.resume_reading()

    def _write_error(self, error: ApiError) -> None:
        response = error_response(error, "/")  # the path may be unknown yet
        response.headers["Connection"] = "close"
        lines = [STATUS_LINE[response.status_code]]
        lines += [name + b": " + value + b"\r\n" for name, value in response.raw_headers]
        self.transport.write(b"".join((*lines, b"\r\n", bytes(response.body))))
