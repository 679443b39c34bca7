"""Over real sockets: what a client can do to a connection before its request is one."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from api_fakes import REPLY, FakeEngine, make_context
from numaserve.server.cli.connection import ConnectionLimits
from numaserve.server.cli.http import HttpServer

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Coroutine[Any, Any, Connection]]

BODY = b'{"prompt": "x"}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
COMPLETE = HEAD % len(BODY) + BODY


@asynccontextmanager
async def listening(limits: ConnectionLimits) -> AsyncIterator[Connect]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpServer(make_context(FakeEngine()), listener, limits)
        task = asyncio.create_task(server.run_until_stopped())
        writers: list[asyncio.StreamWriter] = []

        async def connect() -> Connection:
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writers.append(writer)
            return reader, writer

        try:
            yield connect
        finally:
            for writer in writers:
                writer.close()
            server.stop()
            await task


async def exchange(connection: Connection, request: bytes) -> tuple[int, Any]:
    """Send, and read one answer: its status and its body."""
    reader, writer = connection
    writer.write(request)
    return await answer_of(reader)


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("content-length: ")[1].split("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


async def is_served(connect: Connect) -> None:
    status, body = await exchange(await connect(), COMPLETE)
    assert (status, body["choices"][0]["text"]) == (200, REPLY)


def test_headers_without_an_end_are_refused_and_the_connection_closed() -> None:
    async def scenario() -> None:
        async with listening(ConnectionLimits(head_bytes=4096)) as connect:
            reader, writer = await connect()
            writer.write(b"GET /version HTTP/1.1\r\n")
            for _ in range(5):
                writer.write(b"x-long: " + b"y" * 1000)
                await asyncio.sleep(0)
            status, body = await answer_of(reader)
            assert status == 431
            assert "4096 bytes" in body["error"]["message"]
            assert await reader.read() == b""
            await is_served(connect)

    asyncio.run(scenario())


def test_a_client_that_never_ends_its_headers_is_sent_away() -> None:
    async def scenario() -> None:
        async with listening(ConnectionLimits(head_seconds=0.05)) as connect:
            for sent in (b"", b"GET /version HTTP/1.1\r\nHost: x\r\n"):
                connection = await connect()
                status, _ = await exchange(connection, sent)
                assert status == 408
                assert await connection[0].read() == b""

    asyncio.run(scenario())


def test_the_second_request_of_a_connection_is_bounded_as_the_first() -> None:
    async def scenario() -> None:
        async with listening(ConnectionLimits(head_seconds=0.05, head_bytes=4096)) as connect:
            connection = await connect()
            for _ in range(3):
                assert (await exchange(connection, COMPLETE))[0] == 200
            assert (await exchange(connection, b"GET /version HTTP/1.1\r\n"))[0] == 408

    asyncio.run(scenario())


def test_a_long_body_is_not_taken_for_headers() -> None:
    async def scenario() -> None:
        async with listening(ConnectionLimits(head_seconds=0.05, head_bytes=200)) as connect:
            content = json.dumps({"prompt": "x", "user": "u" * 1000}).encode()
            reader, writer = await connect()
            writer.write(HEAD % len(content) + content[:300])
            await asyncio.sleep(0.1)
            writer.write(content[300:])
            assert (await answer_of(reader))[0] == 200

    asyncio.run(scenario())


def test_too_many_connections_are_told_to_come_back() -> None:
    async def scenario() -> None:
        async with listening(ConnectionLimits(connections=2)) as connect:
            held = [await connect() for _ in range(2)]
            for connection in held:
                assert (await exchange(connection, COMPLETE))[0] == 200
            status, body = await answer_of((await connect())[0])
            assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
            held[0][1].close()
            await held[0][1].wait_closed()
            while (await exchange(await connect(), COMPLETE))[0] == 429:
                await asyncio.sleep(0.01)

    asyncio.run(scenario())
