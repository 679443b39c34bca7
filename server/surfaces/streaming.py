"""Answers, as one JSON object or as events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Protocol

import msgspec
from fastapi import Request
from fastapi.responses import Response
from numaserve.server.generation.generation import Generation
from numaserve.server.http.disconnect import until_disconnect
from numaserve.server.http.large_json import JsonAnswer
from numaserve.server.surfaces.event_stream import EventStream, Framing


def json_response(body: object) -> Response:
    """Return a 200 with a JSON body."""
    return JsonAnswer(msgspec.json.encode(body))


def utc_text(seconds: float) -> str:
    """Return a time, in seconds since 1970, in the format of RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


class Answer(Protocol):
    """A generation in the format of one endpoint."""

    @property
    def framing(self) -> Framing:
        """The format of the answer's events."""

    async def complete(self, generation: Generation) -> Response:
        """Return the whole answer."""

    def stream(self, generation: Generation) -> AsyncGenerator[object, None]:
        """Yield the payloads of the answer's events."""


async def respond(
    request: Request, answer: Answer, generation: Generation, *, stream: bool, ping_seconds: float
) -> Response:
    """Return the answer, as events or whole. The generation is closed at the end, or when the client leaves."""
    if stream:
        return EventStream(answer.framing, _news(answer.stream(generation), generation), generation, ping_seconds)
    try:
        return await until_disconnect(request, answer.complete(generation))
    finally:
        await generation.aclose()


async def _news(payloads: AsyncGenerator[object, None], generation: Generation) -> AsyncGenerator[object, None]:
    """Yield the payloads without those that a client has received from another server."""
    async with aclosing(payloads):
        async for payload in payloads:
            if not generation.replaying:
                yield payload
