"""Streams of events, with keep-alive messages while there is nothing to send."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import msgspec
from fastapi import Request
from fastapi.responses import StreamingResponse
from numaserve.server.engine.types import EngineError
from numaserve.server.generation.generation import Generation
from numaserve.server.http.disconnect import until_disconnect
from numaserve.server.http.errors import ApiError, from_engine, internal_error
from starlette.types import Message, Receive, Scope, Send

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # the latter: nginx must not buffer events
_logger = logging.getLogger("numaserve.api")


@dataclass(frozen=True)
class Framing:
    """The format of a surface's streams."""

    media_type: str
    event: Callable[[object], bytes]
    error: Callable[[ApiError], bytes]  # an error after the stream has begun
    ping: bytes  # a keep-alive message; empty if there is none
    end: bytes = b""


def named_event(payload: object) -> bytes:
    """Return a server-sent event named by the payload's `type`."""
    name = payload["type"] if isinstance(payload, dict) else ""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(payload))


class EventStream(StreamingResponse):
    """Sends `payloads` as events, then the framing's end.

    However it ends, `generation` is closed, which aborts it in the engine. Leaving that to the garbage collector would
    continue to generate for a client that has left.

    The status line is sent with the first event: an earlier failure is an answer of its own. If there is nothing to
    send for `ping_seconds`, the status line and a comment are sent, because proxies and clients close connections that
    look dead. 0 sends no comments.
    """

    def __init__(
        self, framing: Framing, payloads: AsyncGenerator[object, None], generation: Generation, ping_seconds: float
    ) -> None:
        super().__init__((), headers=_HEADERS, media_type=framing.media_type)
        self._framing = framing
        self._payloads = payloads
        self._generation = generation
        self._ping_seconds = ping_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events, or stop when the client leaves. Raises failures that occur before anything was sent."""
        head: Message = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        writer = _Writer(send, head, self._framing.ping, self._ping_seconds)
        try:
            await until_disconnect(Request(scope, receive), self._write(writer))
        except ApiError:  # any other failure after the beginning is an event
            if not writer.started:
                raise
        finally:
            await writer.close()
            await self._payloads.aclose()
            await self._generation.aclose()

    async def _write(self, writer: _Writer) -> None:
        try:
            async for payload in self._payloads:
                await writer.write(self._framing.event(payload))
        except EngineError as error:
            if not writer.started:
                raise
            await writer.write(self._framing.error(from_engine(error)))
        except Exception:
            if not writer.started:
                raise
            # The status line has been sent: the error has to be an event.
            _logger.exception("a stream failed")
            await writer.write(self._framing.error(internal_error()))
        await writer.write(self._framing.end, more=False)


class _Writer:
    """Sends pieces of a body, and comments while there are none.

    One timer checks the time of the last piece. A timer for each piece, or waiting for each with a timeout, would add
    cost to every token of every stream.
    """

    def __init__(self, send: Send, head: Message, ping: bytes, ping_seconds: float) -> None:
        self.started = False
        self._ended = False
        self._ping = ping
        self._send = send
        self._head = head
        self._ping_seconds = ping_seconds
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._turn = asyncio.Lock()  # a comment must not come between the status line and the first event
        self._pinging: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(ping_seconds, self._look) if ping and ping_seconds else None

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send `data`; without `more` it is the end of the body. A comment that was due before the end is dropped."""
        async with self._turn:
            if self._ended:
                return
            self._ended = not more
            if not self.started:
                self.started = True
                await self._send(self._head)
            self._last = self._loop.time()
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
        if not more:
            self._stop()

    async def close(self) -> None:
        """Send no more comments."""
        self._stop()
        if self._pinging is not None:
            self._pinging.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._pinging

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._last + self._ping_seconds:
            self._last = now
            # A client that does not read takes neither this comment nor another one.
            if self._pinging is None or self._pinging.done():
                self._pinging = self._loop.create_task(self.write(self._ping))
        self._timer = self._loop.call_at(self._last + self._ping_seconds, self._look)
