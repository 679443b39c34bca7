"""Noticing that the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from fastapi import Request
from fastapi.responses import Response
from numaserve.server.api.errors import CLIENT_CLOSED_REQUEST

T = TypeVar("T")


async def until_disconnect(request: Request, work: Coroutine[object, object, T]) -> T | Response:
    """The result of `work`, which is cancelled when the client leaves; then a `Response` that nobody reads.

    The body must have been read already: the next message the client can cause is its disconnect.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
