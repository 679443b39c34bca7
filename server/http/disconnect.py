"""An end to work whose client has left."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from fastapi import Request
from numaserve.server.http.errors import client_left

T = TypeVar("T")


async def until_disconnect(request: Request, work: Coroutine[object, object, T]) -> T:
    """The result of `work`. Raises `ApiError` when the client leaves; `work` is cancelled then.

    The body must have been read already: the next message the client can cause is its disconnect.
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
