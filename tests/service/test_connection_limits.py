"""Over real sockets: what a client can do to a connection before its request is one."""

import asyncio
import json

from numaserve.server.connection.bounds import ConnectionLimits
from raw_clients import COMPLETE, GET, HEAD, answer_of, exchange, is_served, listening


async def test_headers_without_an_end_are_refused_and_the_connection_closed() -> None:
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


async def test_a_client_that_never_ends_its_headers_is_sent_away() -> None:
    async with listening(ConnectionLimits(head_seconds=0.05)) as connect:
        for sent in (b"", b"GET /version HTTP/1.1\r\nHost: x\r\n"):
            connection = await connect()
            status, _ = await exchange(connection, sent)
            assert status == 408
            assert await connection[0].read() == b""


async def test_the_second_request_of_a_connection_is_bounded_as_the_first() -> None:
    async with listening(ConnectionLimits(head_seconds=0.05, head_bytes=4096)) as connect:
        connection = await connect()
        for _ in range(3):
            assert (await exchange(connection, COMPLETE))[0] == 200
        assert (await exchange(connection, b"GET /version HTTP/1.1\r\n"))[0] == 408


async def test_a_long_body_is_not_taken_for_headers() -> None:
    async with listening(ConnectionLimits(head_seconds=0.05, head_bytes=200)) as connect:
        content = json.dumps({"prompt": "x", "user": "u" * 1000}).encode()
        reader, writer = await connect()
        writer.write(HEAD % len(content) + content[:300])
        await asyncio.sleep(0.1)
        writer.write(content[300:])
        assert (await answer_of(reader))[0] == 200


async def test_too_many_connections_are_told_to_come_back() -> None:
    async with listening(ConnectionLimits(connections=2)) as connect:
        held = [await connect() for _ in range(2)]
        for connection in held:
            assert (await exchange(connection, COMPLETE))[0] == 200
        status, body = await answer_of((await connect())[0])
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert body["error"]["type"] == "rate_limit_error"
        held[0][1].close()
        await held[0][1].wait_closed()
        while (await exchange(await connect(), COMPLETE))[0] == 429:
            await asyncio.sleep(0.01)


async def test_more_headers_than_any_client_sends_are_not_kept() -> None:
    async with listening(ConnectionLimits(head_fields=20)) as connect:
        reader, writer = await connect()
        status, body = await exchange((reader, writer), b"GET /version HTTP/1.1\r\n" + b"a: b\r\n" * 21 + b"c")
        assert status == 431
        assert "20 headers" in body["error"]["message"]
        assert await reader.read() == b""
        assert (await exchange(await connect(), b"GET /version HTTP/1.1\r\n" + b"a: b\r\n" * 20 + b"\r\n"))[0] == 200


async def test_empty_lines_between_requests_are_neither_a_request_nor_without_bound() -> None:
    async with listening(ConnectionLimits(head_seconds=0.05, head_bytes=1000)) as connect:
        connection = await connect()
        assert (await exchange(connection, GET))[0] == 200
        connection[1].write(b"\r\n")
        await asyncio.sleep(0.1)
        assert (await exchange(connection, GET))[0] == 200
        for _ in range(20):
            connection[1].write(b"\r\n" * 50)
            await asyncio.sleep(0.001)
        assert (await answer_of(connection[0]))[0] == 431
        assert await connection[0].read() == b""
