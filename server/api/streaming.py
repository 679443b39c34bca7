"""Server-sent events, and noticing that the client has left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Protocol, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from numaserve.server.api.errors import from_engine, internal_error
from numaserve.server.api.generation import Generation
from numaserve.server.engine.types import EngineError
from starlette.types import Receive, Scope, Send

_DONE = b"data: [DONE]\n\n"
_CLIENT_CLOSED_REQUEST = 499  # nobody reads it; it tells the log why there was no other answer
_logger = logging.getLogger("numaserve.api")

T = TypeVar("T")


def json_response(body: object) -> Response:
    """A 200 with a JSON body."""
    return Response(msgspec.json.encode(body), media_type="application/json")


def event(payload: object) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


class EventStream(StreamingResponse):
    """Sends `payloads` as events, then ``[DONE]``. However it ends, `generation` is closed, which aborts it in the
    engine: leaving that to the garbage collector would keep generating for a client that has left."""

    media_type = "text/event-stream"

    def __init__(self, payloads: AsyncGenerator[object, None], generation: Generation) -> None:
        self._payloads = payloads
        self._generation = generation
        self._events = _events(payloads)
        headers = {
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }  # the latter: nginx must not hold events back
        super().__init__(self._events, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it all, or stop where the client leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()
            await self._payloads.aclose()
            await self._generation.aclose()


async def _events(payloads: AsyncIterator[object]) -> AsyncGenerator[bytes, None]:
    try:
        async for payload in payloads:
            yield event(payload)
    except EngineError as error:
        yield event(from_engine(error).body())
    except Exception:
        # The status line is long gone: the error has to be an event.
        _logger.exception("a stream failed")
        yield event(internal_error().body())
    yield _DONE


class Answer(Protocol):
    """A generation in the shape of one endpoint."""

    async def complete(self, generation: Generation) -> Response:
        """The whole of it."""

    def stream(self, generation: Generation) -> AsyncGenerator[object, None]:
        """Its events."""


async def respond(request: Request, answer: Answer, generation: Generation, *, stream: bool) -> Response:
    """The answer, as events or whole. The generation ends with it, or when the client leaves."""
    if stream:
        return EventStream(answer.stream(generation), generation)
    try:
        return await until_disconnect(request, answer.complete(generation))
    finally:
        await generation.aclose()


async def until_disconnect(request: Request, work: Coroutine[object, object, T]) -> T | Response:
    """The result of `work`, which is cancelled when the client leaves; then a `Response` that nobody reads.

    The body must have been read already: the next message the client can cause is its disconnect.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else Response(status_code=_CLIENT_CLOSED_REQUEST)
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
