"""The HTTP server. Imported while the workers load: FastAPI takes half a second."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import cast

import uvicorn
from numaserve.server.api.app import ApiContext, create_app
from numaserve.server.cli.connection import ConnectionLimits, LimitedProtocol
from numaserve.server.cli.listen import BACKLOG

_LAST_CHUNKS_S = 5  # for what is already in buffers when the engine has drained


class HttpServer(uvicorn.Server):
    """uvicorn on a socket that is already bound. Signals are the service's business, which drains before it stops."""

    def __init__(self, context: ApiContext, listener: socket.socket, limits: ConnectionLimits | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(context),
                http=cast(type[asyncio.Protocol], partial(LimitedProtocol, limits=limits or ConnectionLimits())),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=_LAST_CHUNKS_S,
            )
        )
        self._listener = listener

    async def run_until_stopped(self) -> None:
        """Serve until `stop`."""
        await self.serve(sockets=[self._listener])

    def stop(self) -> None:
        """Finish the answers that are being written, then end."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers alone."""
        yield
