"""The HTTP server of an application on bound sockets, and its shutdown."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import uvicorn
from numaserve.server.connection.bounds import ConnectionLimits, LimitedProtocol
from numaserve.server.connection.listen import BACKLOG
from starlette.types import ASGIApp

# Time for buffers to empty once the engine has ended: enough for any client that reads, however far away.
_LAST_CHUNKS_S = 1.0
_HURRIED_S = 0.1
_POLL_S = 0.01
_TICK_S = 1.0
_HANDSHAKE_S = 10.0

_Listen = Callable[..., Awaitable[asyncio.Server]]


class AppServer(uvicorn.Server):
    """The uvicorn server of `app` on bound sockets, which listens at once or from `listen` on.

    The service handles signals, because it drains before it stops. uvicorn's main loop and shutdown poll ten times a
    second, and wait without limit for a client that does not read its answer; hence both are replaced. uvicorn's
    startup is replaced because it accepts neither a TLS context that can change later nor a handshake deadline.
    """

    def __init__(
        self,
        app: ASGIApp,
        listeners: Sequence[socket.socket],
        limits: ConnectionLimits | None = None,
        tls: ssl.SSLContext | None = None,
        *,
        at_once: bool = True,
    ) -> None:
        limits = limits or ConnectionLimits()
        super().__init__(
            uvicorn.Config(
                cast(Any, app),
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
        self._listeners = listeners
        self.servers = []
        self._tls = tls
        self._may_listen = asyncio.Event()
        if at_once:
            self._may_listen.set()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def listen(self) -> None:
        """Accept connections from now on."""
        self._may_listen.set()

    def accept_no_more(self) -> None:
        """Stop accepting, leave the sockets to other holders, and close each connection after its answer."""
        for server in self.servers:
            server.close()
        for listener in self._listeners:
            listener.close()
        for connection in list(self._connections):
            _shut_down(connection)

    @property
    def _connections(self) -> set[LimitedProtocol]:
        return cast(set[LimitedProtocol], self.server_state.connections)

    async def run_until_stopped(self) -> None:
        """Serve until `stop`."""
        await self.serve()

    def stop(self) -> None:
        """Finish the answers in progress, then end. Clients that do not read do not delay the end."""
        self.should_exit = True
        self._stop.set()
        self._may_listen.set()

    def hurry(self) -> None:
        """Stop, and wait only until the buffered data is written."""
        self._hurry.set()
        self.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait until listening is allowed, then start listening."""
        await self._may_listen.wait()
        if self.should_exit:
            return
        protocol = partial(
            cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        tls = {} if self._tls is None else {"ssl": self._tls, "ssl_handshake_timeout": _HANDSHAKE_S}
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            is_unix = listener.family == socket.AF_UNIX
            listen = cast(_Listen, loop.create_unix_server if is_unix else loop.create_server)
            self.servers.append(await listen(protocol, sock=listener, backlog=BACKLOG, **tls))
        self.started = True

    async def main_loop(self) -> None:
        """Update the Date header until `stop`."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, close connections as their answers end, and close the remaining ones after a time limit."""
        self.accept_no_more()
        waited = 0.0
        while self._connections and waited < (_HURRIED_S if self._hurry.is_set() else _LAST_CHUNKS_S):
            await asyncio.sleep(_POLL_S)
            waited += _POLL_S
        for connection in list(self._connections):
            connection.transport.abort()
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_HURRIED_S)  # the tasks write the request log


def _shut_down(connection: LimitedProtocol) -> None:
    """Close an idle connection; let a busy one finish its answer first."""
    is_idle = connection.cycle is None or connection.cycle.response_complete
    if is_idle and connection.transport.get_write_buffer_size() == 0:
        # Closing would wait for the client's TLS close_notify, which a client with an idle pool does not send.
        connection.transport.abort()
    else:
        connection.shutdown()
