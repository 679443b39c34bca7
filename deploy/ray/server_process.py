"""The process of `numaserve serve`, a child of its replica: on the replica's nodes, on a Unix socket, ended with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import aiohttp
from numaserve.ray.launch import command_on
from numaserve.server.client.unix_session import open_session

logger = logging.getLogger("ray.serve")

_LOOKS_SECONDS = 0.5
_ENDING_SECONDS = 10.0  # after the server's own drain time


class ServerFailed(Exception):
    """The error of a server that has ended or does not serve."""


class ServerProcess:
    """A running server, which listens at `socket`. `session` sends it requests, at addresses that begin with `URL`.

    The server inherits `descriptors`, which stay open while it runs. The server gets SIGTERM when this process ends for
    any reason. `lost` is called in a thread if the server ends between its readiness and `stop`.
    """

    URL = "http://localhost"

    def __init__(
        self,
        command: Sequence[str],
        cores: Sequence[int],
        socket: Path,
        descriptors: Sequence[int],
        *,
        lost: Callable[[], None],
    ) -> None:
        self._command = command_on(cores, [*command, "--uds", str(socket)])
        self._descriptors = tuple(descriptors)
        self._lost = lost
        self._wanted = False  # true from the server's readiness to `stop`
        self._started = threading.Event()
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._status = "was not started"
        # A daemon thread: it waits for the server, but the interpreter must not wait for the thread.
        threading.Thread(target=self._run, daemon=True).start()
        self._started.wait()
        self.session = open_session(socket)

    @property
    def pid(self) -> int | None:
        """The process id of the server; None once the server has ended."""
        return None if self._process is None or self._ended.is_set() else self._process.pid

    async def until_ready(self, seconds: float) -> None:
        """Wait until GET /readyz is 200. Raises `ServerFailed` if the server ends first or exceeds `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            if await self.status_of("/readyz") == 200:
                self._wanted = True
                return
            if self._ended.is_set():
                raise ServerFailed(f"The server {self._status}. The replica's log has its last output.")
            if time.monotonic() > deadline:
                raise ServerFailed(f"The server did not become ready within {seconds:g} s.")
            await asyncio.sleep(_LOOKS_SECONDS)

    async def status_of(self, route: str) -> int | None:
        """Return the status of GET `route`; None without an answer."""
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            timeout = aiohttp.ClientTimeout(total=10)
            async with self.session.get(f"{self.URL}{route}", timeout=timeout) as answer:
                return answer.status
        return None

    async def text_of(self, route: str) -> str:
        """Return the body of GET `route`. Raises `ServerFailed`."""
        async with self._answer(route) as answer:
            return await answer.text()

    @contextlib.asynccontextmanager
    async def _answer(self, route: str) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self.session.get(f"{self.URL}{route}") as answer:
                yield answer
        except (aiohttp.ClientError, OSError) as error:
            raise ServerFailed(str(error)) from None

    async def stop(self, drain_seconds: float) -> None:
        """Send SIGTERM, wait for the server's own drain, and send SIGKILL if it takes longer."""
        self._wanted = False
        await self.session.close()
        if self._process is not None and not self._ended.is_set():
            self._process.send_signal(signal.SIGTERM)
            if not await asyncio.to_thread(self._ended.wait, drain_seconds + _ENDING_SECONDS):
                self._process.kill()
                await asyncio.to_thread(self._ended.wait, _ENDING_SECONDS)

    def _run(self) -> None:
        try:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, pass_fds=self._descriptors)
        except OSError as error:
            self._status = f"could not be started: {error}"
            self._ended.set()
            return
        finally:
            self._started.set()
        status = self._process.wait()
        self._status = f"ended with status {status}"
        logger.info("the server %s", self._status)
        self._ended.set()
        if self._wanted:
            self._lost()
