"""What stands between clients and replicas: it sends each request to one, and to another one when that fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator

from numaserve.ray.calls import Call, Head, ReplicaGone, passed_on
from numaserve.ray.prefixes import blocks_of, prompt_of
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

logger = logging.getLogger("ray.serve")

_PAUSE_SECONDS = 0.1  # before the second try, doubled from try to try
_LONGEST_PAUSE_SECONDS = 2.0
_GONE = (ReplicaGone, RayError, RayServeException)


class Ingress:
    """A user class of Ray Serve: answers HTTP requests with what a replica says."""

    def __init__(self, replicas: DeploymentHandle, retry_seconds: float) -> None:
        self._replicas = replicas.options(stream=True)
        self._retry_seconds = retry_seconds

    async def __call__(self, request: Request) -> Response:
        """The answer of a replica. 503 when none answers in time."""
        parts = self._parts(await _call_of(request))
        try:
            head = await anext(parts)
        except ReplicaGone as error:
            logger.error("no replica answers: %s", error)
            said = {"error": {"message": "No replica answers; try again later.", "type": "server_error"}}
            return JSONResponse(said, 503, {"Retry-After": "5"})
        assert isinstance(head, Head)  # noqa: S101  # what `ask` begins with
        response = StreamingResponse(_body(parts), head.status)
        response.raw_headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in head.headers]
        return response

    async def _parts(self, call: Call) -> AsyncGenerator[Head | bytes, None]:
        """The head and the body of an answer. Until the head is there another replica is asked when one fails.

        Raises `ReplicaGone` when none answers.
        """
        end = time.monotonic() + self._retry_seconds
        pause = _PAUSE_SECONDS
        while True:
            begun = False
            try:
                async for part in self._replicas.ask.remote(call):
                    begun = True
                    yield part
                return
            except _GONE as error:
                if begun or time.monotonic() + pause > end:
                    raise ReplicaGone(str(error)) from None
                logger.warning("a replica did not answer %s %s, another is asked: %s", call.method, call.target, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def _call_of(request: Request) -> Call:
    body = await request.body()
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    decoded: object = None
    with contextlib.suppress(ValueError):
        decoded = json.loads(body) if body else None
    return Call(request.method, target, passed_on(request.headers.items()), body, blocks_of(prompt_of(decoded)))


async def _body(parts: AsyncGenerator[Head | bytes, None]) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(parts):
        async for part in parts:
            assert isinstance(part, bytes)  # noqa: S101  # the head was the first
            yield part
