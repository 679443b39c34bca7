"""Over real sockets: clients that send their next requests before they have the answers."""

import asyncio
import json

import pytest
from numaserve.server.connection.bounds import ConnectionLimits
from raw_clients import BODY, COMPLETE, GET, HEAD, Connection, answer_of, is_closed, is_served, listening, pour

from tests.support.api_fakes import MODEL, REPLY, FakeEngine, make_context

LIMITS = ConnectionLimits(requests_ahead=4, head_bytes=1 << 14, linger_bytes=1 << 16)


async def until(engine: FakeEngine, admitted: int) -> None:
    while len(engine.admitted) < admitted:
        await asyncio.sleep(0.001)


async def statuses_until_closed(connection: Connection) -> list[int]:
    statuses = []
    try:
        while True:
            statuses.append((await answer_of(connection[0]))[0])
    except (asyncio.IncompleteReadError, ConnectionError):
        return statuses


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    async with listening(LIMITS) as connect:
        reader, writer = await connect()
        writer.write(COMPLETE + GET + b"GET /nowhere HTTP/1.1\r\n\r\n" + COMPLETE)
        assert [(await answer_of(reader))[0] for _ in range(4)] == [200, 200, 404, 200]
        writer.write(GET)
        assert (await answer_of(reader))[0] == 200


async def test_requests_beyond_a_few_ahead_are_not_kept_and_the_others_answered() -> None:
    async with listening(LIMITS) as connect:
        connection = await connect()
        connection[1].write(GET * 100)
        assert await statuses_until_closed(connection) == [200] * 5
        await is_served(connect)


async def test_a_flood_of_requests_behind_an_unfinished_answer_is_bounded() -> None:
    engine = FakeEngine(pause_after=1)
    async with listening(LIMITS, make_context(engine)) as connect:
        connection = await connect()
        connection[1].write(COMPLETE)
        await until(engine, 1)
        assert await pour(connection, GET * 100, 8 << 20) < 8 << 20
        while not engine.aborted:
            await asyncio.sleep(0.001)


async def test_a_large_body_sent_ahead_is_not_kept() -> None:
    engine = FakeEngine(pause_after=1)
    async with listening(LIMITS, make_context(engine)) as connect:
        connection = await connect()
        connection[1].write(COMPLETE)
        await until(engine, 1)
        connection[1].write(HEAD % (8 << 20))
        assert await pour(connection, b" " * 1000, 8 << 20) < 8 << 20


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "ahead", [b"", GET, COMPLETE, GET * 100, HEAD % 100_000 + b" " * 90_000, b"GET /ver", b"garbage"]
)
async def test_a_client_that_leaves_is_noticed_whatever_it_sent_ahead(ahead: bytes, *, stream: bool) -> None:
    engine = FakeEngine(pause_after=1)
    content = json.dumps({"model": MODEL, "prompt": "x", "stream": stream}).encode()
    async with listening(LIMITS, make_context(engine)) as connect:
        _, writer = await connect()
        writer.write(HEAD % len(content) + content)
        await until(engine, 1)
        writer.write(ahead)
        await writer.drain()
        await asyncio.sleep(0.01)
        assert engine.aborted == []
        writer.close()
        while not engine.aborted:
            await asyncio.sleep(0.001)
        assert len(engine.admitted) == 1


async def test_half_a_request_sent_ahead_does_not_cut_the_answer() -> None:
    limits = ConnectionLimits(head_seconds=0.02)
    engine = FakeEngine(pause_after=1)
    async with listening(limits, make_context(engine)) as connect:
        reader, writer = await connect()
        content = json.dumps({"prompt": "x", "stream": True}).encode()
        writer.write(HEAD % len(content) + content + b"GET /version HTTP/1.1\r\n")
        await reader.readuntil(b"data: ")
        await asyncio.sleep(0.1)
        assert engine.aborted == []
        engine.pause_after = None  # too late for this stream, which the end of the connection ends
        writer.close()
        await is_served(connect)


async def test_the_answer_before_half_a_request_is_whole() -> None:
    async with listening(ConnectionLimits(head_seconds=0.02)) as connect:
        reader, writer = await connect()
        writer.write(COMPLETE + HEAD % len(BODY) + BODY[:5])
        status, body = await answer_of(reader)
        assert (status, body["choices"][0]["text"]) == (200, REPLY)
        writer.write(BODY[5:])
        assert (await answer_of(reader))[0] == 200
        writer.write(b"GET")
        assert (await answer_of(reader))[0] == 408
        assert await is_closed(reader)
