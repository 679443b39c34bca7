"""Over real sockets: whom the end of the HTTP server waits for."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from numaserve.server.connection.bounds import ConnectionLimits
from numaserve.server.service.http import HttpServer

from tests.support.api_fakes import FakeEngine, make_context

Client = tuple[socket.socket, asyncio.Task[None]]

LIMITS = ConnectionLimits(requests_ahead=1000)
REQUEST = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@asynccontextmanager
async def a_client(server: HttpServer, listener: socket.socket) -> AsyncIterator[Client]:
    """A connection that has had one answer, and the server's task."""
    serving = asyncio.create_task(server.run_until_stopped())
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, listener.getsockname())
        await loop.sock_sendall(client, b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200" in await loop.sock_recv(client, 4096)
        yield client, serving
        async with asyncio.timeout(60):
            await serving


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numaserve.server.connection.app_server._LAST_CHUNKS_S", 3600.0)


@pytest.mark.usefixtures("patient")
async def test_an_idle_connection_does_not_delay_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpServer(make_context(FakeEngine()), [listener], LIMITS)
        async with a_client(server, listener):
            server.stop()


async def _stall(client: socket.socket, server: HttpServer) -> None:
    """Ask for far more than buffers hold, and read nothing."""
    await asyncio.get_running_loop().sock_sendall(client, REQUEST * 300)
    (connection,) = server.server_state.connections
    while not connection.transport.get_write_buffer_size():  # type: ignore[union-attr]
        await asyncio.sleep(0.01)


async def test_a_client_that_does_not_read_is_cut_off_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numaserve.server.connection.app_server._LAST_CHUNKS_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpServer(make_context(FakeEngine()), [listener], LIMITS)
        async with a_client(server, listener) as (client, _):
            await _stall(client, server)
            server.stop()
        await asyncio.sleep(0)
        assert not server.server_state.connections
        assert not server.server_state.tasks


@pytest.mark.usefixtures("patient")
async def test_in_a_hurry_nobody_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpServer(make_context(FakeEngine()), [listener], LIMITS)
        async with a_client(server, listener) as (client, serving):
            await _stall(client, server)
            server.stop()
            await asyncio.sleep(0.1)
            assert not serving.done()
            server.hurry()
