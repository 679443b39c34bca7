"""The server over real sockets, and clients that send any bytes they like."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from numaserve.server.app.application import ApiContext
from numaserve.server.connection.bounds import ConnectionLimits, LimitedProtocol
from numaserve.server.service.http import HttpServer

from tests.support.api_fakes import REPLY, FakeEngine, make_context

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

BODY = b'{"prompt": "x"}'
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HEAD = POST + b"Content-Length: %d\r\n\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
COMPLETE = HEAD % len(BODY) + BODY
GET = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"


class Connect:
    """Makes connections to a server. `buffer_bytes` bounds what the system keeps of what a client has not read."""

    def __init__(self, server: HttpServer, address: tuple[str, int], buffer_bytes: int | None) -> None:
        self._server = server
        self._address = address
        self._buffer_bytes = buffer_bytes
        self._writers: list[asyncio.StreamWriter] = []

    async def __call__(self) -> Connection:
        client = socket.socket()
        _bound(client, socket.SO_RCVBUF, self._buffer_bytes)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, self._address)
        reader, writer = await asyncio.open_connection(sock=client)
        self._writers.append(writer)
        return reader, writer

    @property
    def connections(self) -> set[LimitedProtocol]:
        """Those that the server has."""
        return cast(set[LimitedProtocol], self._server.server_state.connections)

    def abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def listening(
    limits: ConnectionLimits, context: ApiContext | None = None, *, buffer_bytes: int | None = None
) -> AsyncIterator[Connect]:
    """A server; what it yields connects to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _bound(listener, socket.SO_SNDBUF, buffer_bytes)  # its connections inherit it
        server = HttpServer(context or make_context(FakeEngine()), [listener], limits)
        task = asyncio.create_task(server.run_until_stopped())
        connect = Connect(server, listener.getsockname(), buffer_bytes)
        try:
            yield connect
        finally:
            connect.abort()
            server.stop()
            await task


def _bound(endpoint: socket.socket, option: int, count: int | None) -> None:
    if count is not None:
        endpoint.setsockopt(socket.SOL_SOCKET, option, count)


async def exchange(connection: Connection, request: bytes) -> tuple[int, Any]:
    """Send, and read one answer: its status and its body."""
    reader, writer = connection
    writer.write(request)
    return await answer_of(reader)


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("content-length: ")[1].split("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Wait for the end; whether nothing came before it."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def pour(connection: Connection, piece: bytes, total: int) -> int:
    """Send `piece` again and again until the server closes or `total` bytes are sent; the bytes it took."""
    sent = 0
    try:
        while sent < total and not connection[0].at_eof():
            connection[1].write(piece)
            await connection[1].drain()
            sent += len(piece)
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    return sent


async def is_served(connect: Connect) -> None:
    status, body = await exchange(await connect(), COMPLETE)
    assert (status, body["choices"][0]["text"]) == (200, REPLY)
