"""The ingress between clients and replicas, which sends each request to a replica, and to another if that fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

from numaserve.ray.calls import Call, Head, ReplicaGone, passed_on
from numaserve.ray.prefixes import blocks_of, prompt_of
from numaserve.ray.resume import Resumable
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

logger = logging.getLogger("ray.serve")

_PAUSE_SECONDS = 0.1  # before the second try, then doubled for each try
_LONGEST_PAUSE_SECONDS = 2.0
_GONE = (ReplicaGone, RayError, RayServeException)


class Ingress:
    """A user class of Ray Serve that answers HTTP requests with the answers of replicas."""

    def __init__(self, replicas: DeploymentHandle, retry_seconds: float) -> None:
        self._replicas = replicas.options(stream=True)
        self._retry_seconds = retry_seconds

    async def __call__(self, request: Request) -> Response:
        """Return the answer of a replica, or 503 if none answers in time."""
        call, resumable = await _call_of(request)
        parts = self._parts(call, resumable)
        try:
            head = await anext(parts)
        except ReplicaGone as error:
            logger.error("no replica is available: %s", error)
            return JSONResponse(_error("No replica is available. Retry later."), 503, {"Retry-After": "5"})
        assert isinstance(head, Head)  # noqa: S101  # the first part of `ask`
        response = StreamingResponse(_body(parts, head), head.status)
        response.raw_headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in head.headers]
        return response

    async def _parts(self, call: Call, resumable: Resumable | None) -> AsyncGenerator[Head | bytes, None]:
        """Yield the head and the body of an answer.

        If a replica fails, another replica is asked: for the whole answer before its head has arrived, and for the rest
        of a resumable answer after that. Raises `ReplicaGone` if neither is possible, or if no replica answers for too
        long.
        """
        headed, pause = False, _PAUSE_SECONDS
        progress = time.monotonic()
        while True:
            try:
                async for part in self._replicas.ask.remote(call):
                    if isinstance(part, Head):
                        if headed and part.status != 200:
                            raise ReplicaGone(
                                f"No replica continued the response after a failure (status {part.status})."
                            )
                        if headed:
                            continue
                        resumable = resumable if part.status == 200 else None
                        headed = True
                    elif resumable is not None:
                        part = resumable.take(part)  # noqa: PLW2901
                    progress, pause = time.monotonic(), _PAUSE_SECONDS
                    if part:
                        yield part
                if resumable is None or resumable.ended:
                    return
                raise ReplicaGone("The stream ended early.")
            except _GONE as error:
                late = time.monotonic() + pause > progress + self._retry_seconds
                if late or (headed and resumable is None):
                    raise ReplicaGone(str(error)) from None
                logger.warning(
                    "a replica failed at %s %s; retrying on another replica: %s", call.method, call.target, error
                )
                if headed and resumable is not None:
                    call = replace(call, body=resumable.rest())
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def _call_of(request: Request) -> tuple[Call, Resumable | None]:
    body = await request.body()
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    decoded: object = None
    with contextlib.suppress(ValueError):
        decoded = json.loads(body) if body else None
    prefix = blocks_of(prompt_of(decoded))
    resumable = Resumable.of(request.url.path, decoded)
    if resumable is not None:
        body = resumable.first()
    return Call(request.method, target, passed_on(request.headers.items()), body, prefix), resumable


async def _body(parts: AsyncGenerator[Head | bytes, None], head: Head) -> AsyncIterator[bytes]:
    """Yield the body. An event stream that is cut off ends with an error event; other bodies raise `ReplicaGone`."""
    events = dict(head.headers).get("Content-Type", "").startswith("text/event-stream")
    async with contextlib.aclosing(parts):
        try:
            async for part in parts:
                assert isinstance(part, bytes)  # noqa: S101  # the head was the first
                yield part
        except ReplicaGone as error:
            logger.error("a response ended early: %s", error)
            if not events:
                raise
            yield (
                b"data: "
                + json.dumps(_error("The server failed in the middle of the response. Retry the request.")).encode()
                + b"\n\n"
            )


def _error(message: str) -> dict[str, object]:
    return {"error": {"message": message, "type": "server_error", "code": "replica_failed"}}
