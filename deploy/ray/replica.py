"""The replica: NUMA nodes of its host, and a server on them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import aiohttp
from numaserve.ray.calls import Call, Head, ReplicaGone, passed_on
from numaserve.ray.load import load_of
from numaserve.ray.nodes import Claim
from numaserve.ray.server_process import ServerFailed, ServerProcess
from numaserve.ray.settings import Settings
from yarl import URL

logger = logging.getLogger("ray.serve")


class Replica:
    """A user class of Ray Serve, which creates, calls and ends its instances."""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]  # Serve awaits it
        """Start the server and wait until it is ready. Raises `NoNodes` and `ServerFailed`; Serve then retries."""
        self._settings = settings
        self._server: ServerProcess | None = None
        self._ready_at = time.monotonic()
        claim = Claim.take(settings.nodes, Path(settings.nodes_folder))
        try:
            command = [*settings.command, "serve", settings.model, *settings.options]
            command += ["--drain-seconds", f"{settings.drain_seconds:g}"]
            self._server = ServerProcess(command, claim.cores, claim.socket, claim.descriptors, lost=_end)
        finally:
            claim.close()  # the server has inherited the descriptors
        try:
            await self._server.until_ready(settings.start_seconds)
        except BaseException:
            await self._server.stop(0)
            raise
        logger.info("process %s serves model %s on cores %s", self._server.pid, settings.model, claim.cores)

    async def ask(self, call: Call) -> AsyncGenerator[Head | bytes, None]:
        """Yield the head of the answer, then its body as it arrives. Raises `ReplicaGone`."""
        server = self._running
        url = URL(f"{server.URL}{call.target}", encoded=True)
        try:
            async with server.session.request(
                call.method, url, headers=call.headers, data=call.body, allow_redirects=False
            ) as answer:
                yield Head(answer.status, passed_on(answer.headers.items()))
                async for piece in answer.content.iter_any():
                    yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise ReplicaGone(f"The connection to the replica's server failed: {error}") from None

    async def check_health(self) -> None:
        """Raise `ServerFailed` if the server has ended, has given up, or is not ready for too long.

        A server that replaces its workers is not ready for a while, but loses no request. A new replica would lose the
        requests, and load the model no sooner.
        """
        server = self._running
        if server.pid is None or await server.status_of("/livez") == 503:
            raise ServerFailed("The server ended.")
        now = time.monotonic()
        if await server.status_of("/readyz") == 200:
            self._ready_at = now
        elif now - self._ready_at > self._settings.unready_seconds:
            raise ServerFailed(f"The server has not been ready for {now - self._ready_at:.0f} s.")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the load from the server's /metrics, the input of `replicas_for`."""
        return load_of(await self._running.text_of("/metrics"))

    async def pid(self) -> int | None:
        """Return the server's process id."""
        return self._running.pid

    async def __del__(self) -> None:  # Serve awaits it once no request runs
        if self._server is not None:
            await self._server.stop(self._settings.drain_seconds)

    @property
    def _running(self) -> ServerProcess:
        assert self._server is not None  # noqa: S101  # Serve calls no replica whose construction failed
        return self._server


def _end() -> None:
    """End this process: Serve notices a dead actor at once, and sends it no more requests.

    Waiting for `check_health` was rejected. Until it has failed three times, half a minute later, the replica would
    have the fewest requests, and would therefore get all new ones.
    """
    os._exit(1)
