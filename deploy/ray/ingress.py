"""What stands between clients and replicas: it sends each request to one, and to another one when that fails."""

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
        call, resumable = await _call_of(request)
        parts = self._parts(call, resumable)
        try:
            head = await anext(parts)
        except ReplicaGone as error:
            logger.error("no replica is available: %s", error)
            return JSONResponse(_error("No replica is available. Retry later."), 503, {"Retry-After": "5"})
        assert isinstance(head, Head)  # noqa: S101  # what `ask` begins with
        response = StreamingResponse(_body(parts, head), head.status)
        response.raw_headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in head.headers]
        return response

    async def _parts(self, call: Call, resumable: Resumable | None) -> AsyncGenerator[Head | bytes, None]:
        """The head and the body of an answer.

        When a replica fails another one is asked, for the whole answer until its head is there, and after that for the
        rest where it is resumable. Raises `ReplicaGone` when that cannot be, and when for too long none answers.
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
    """The body; a stream of events that breaks off ends with one that says so. Others raise `ReplicaGone`."""
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
