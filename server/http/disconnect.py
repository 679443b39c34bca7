"""Cancellation of work whose client has disconnected."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from fastapi import Request
from numaserve.server.http.errors import client_left

T = TypeVar("T")


async def until_disconnect(request: Request, work: Coroutine[object, object, T]) -> T:
    """Return the result of `work`. If the client disconnects, cancel `work` and raise `ApiError`.

    The body must have been read already: the client's next message is then its disconnect.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise client_left()
        return await task
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
