"""The HTTP server. Imported while the workers load: FastAPI takes half a second."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import cast

import uvicorn
from numaserve.server.api.app import ApiContext, create_app
from numaserve.server.service.connection import ConnectionLimits, LimitedProtocol
from numaserve.server.service.listen import BACKLOG

# Time for buffers to empty once the engine has ended: any client that reads has them by then, however far away.
_LAST_CHUNKS_S = 1.0
_HURRIED_S = 0.1
_POLL_S = 0.01
_TICK_S = 1.0
_HANDSHAKE_S = 10.0


_Listen = Callable[..., Awaitable[asyncio.Server]]


class HttpServer(uvicorn.Server):
    """uvicorn on a socket that is already bound. Signals are the service's business, which drains before it stops.

    uvicorn's own main loop and shutdown look at what they wait for ten times a second, and wait without end for a
    client that does not read its answer; hence those two are replaced. Its startup takes no TLS context that can be
    changed later, and no deadline for a handshake.
    """

    def __init__(
        self,
        context: ApiContext,
        listener: socket.socket,
        limits: ConnectionLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        limits = limits or ConnectionLimits()
        super().__init__(
            uvicorn.Config(
                create_app(context),
                http=cast(type[asyncio.Protocol], partial(LimitedProtocol, limits=limits)),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=limits.keep_alive_seconds,
            )
        )
        self._listener = listener
        self._tls = tls
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._context = context

    async def run_until_stopped(self) -> None:
        """Serve until `stop`."""
        await self.serve()

    def stop(self) -> None:
        """Finish the answers that are being written, then end. Clients that do not read them do not delay it, and
        requests that wait to be decoded or tokenized are refused."""
        self._context.close()
        self.should_exit = True
        self._stop.set()

    def hurry(self) -> None:
        """Stop, and wait no longer than it takes to write what is there."""
        self._hurry.set()
        self.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        is_unix = self._listener.family == socket.AF_UNIX
        protocol = partial(
            cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        tls = {} if self._tls is None else {"ssl": self._tls, "ssl_handshake_timeout": _HANDSHAKE_S}
        listen = cast(_Listen, loop.create_unix_server if is_unix else loop.create_server)
        self.servers = [await listen(protocol, sock=self._listener, backlog=BACKLOG, **tls)]
        self.started = True

    async def main_loop(self) -> None:
        """Keep the Date header right until `stop`."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, close connections as their answers end, and those that are left after a while."""
        for server in self.servers:
            server.close()
        self._listener.close()
        connections = cast(set[LimitedProtocol], self.server_state.connections)
        for connection in list(connections):
            _shut_down(connection)
        waited = 0.0
        while connections and waited < (_HURRIED_S if self._hurry.is_set() else _LAST_CHUNKS_S):
            await asyncio.sleep(_POLL_S)
            waited += _POLL_S
        for connection in list(connections):
            connection.transport.abort()
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_HURRIED_S)  # they write the requests' lines of the log


def _shut_down(connection: LimitedProtocol) -> None:
    """Close an idle connection, or else let its answer be the last."""
    is_idle = connection.cycle is None or connection.cycle.response_complete
    if is_idle and connection.transport.get_write_buffer_size() == 0:
        # Closing would wait for the client's farewell in TLS, which a client that sleeps over its pool does not send.
        connection.transport.abort()
    else:
        connection.shutdown()
