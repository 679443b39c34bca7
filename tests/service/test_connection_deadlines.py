"""Over real sockets: clients that do not end what they send, or do not read what they are sent."""

import asyncio
import json
import time
from typing import cast

import pytest
from numaserve.server.connection.bounds import ConnectionLimits
from numaserve.server.connection.client_transport import ClientTransport
from raw_clients import BODY, CHUNKED, GET, HEAD, answer_of, exchange, is_closed, listening, pour

from tests.support.api_fakes import FakeEngine, make_context

REFUSED = b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
LONG = "x" * 2_000_000


def streaming(**fields: object) -> bytes:
    content = json.dumps({"prompt": "x", "stream": True, "max_tokens": 190, **fields}).encode()
    return HEAD % len(content) + content


async def test_an_idle_connection_is_closed_after_a_while() -> None:
    async with listening(ConnectionLimits(keep_alive_seconds=1)) as connect:
        connection = await connect()
        for _ in range(2):
            start = time.monotonic()
            assert (await exchange(connection, GET))[0] == 200
        assert await is_closed(connection[0])
        assert time.monotonic() - start > 0.5


async def test_an_answered_request_whose_body_never_ends_is_given_up() -> None:
    async with listening(ConnectionLimits(linger_seconds=0.05)) as connect:
        for request in (
            REFUSED % 1000,
            b"GET /version HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",
            REFUSED % 9 + b"x",
        ):
            connection = await connect()
            assert (await exchange(connection, request))[0] in (200, 404)
            assert await is_closed(connection[0])
            connection = await connect()
            assert (await exchange(connection, request))[0] in (200, 404)
            await pour(connection, b"x", 5)
            assert await is_closed(connection[0])


async def test_of_the_body_of_an_answered_request_only_so_much_is_discarded() -> None:
    async with listening(ConnectionLimits(linger_bytes=1 << 16)) as connect:
        connection = await connect()
        assert (await exchange(connection, REFUSED % (16 << 20)))[0] == 404
        assert await pour(connection, b"x" * 1000, 16 << 20) < 16 << 20


async def test_a_request_that_ends_after_its_answer_leaves_the_connection_usable() -> None:
    async with listening(ConnectionLimits(linger_seconds=60)) as connect:
        connection = await connect()
        for _ in range(3):
            assert (await exchange(connection, REFUSED % len(BODY)))[0] == 404
            (served,) = connect.connections
            assert served._client._linger_timer is not None
            assert (await exchange(connection, BODY + GET))[0] == 200
            assert served._client._linger_timer is None  # which would close it
        assert (await exchange(connection, GET))[0] == 200


async def test_a_client_that_is_still_sending_when_its_body_is_refused_gets_the_answer() -> None:
    async with listening(ConnectionLimits(), make_context(FakeEngine(), max_body_bytes=100_000)) as connect:
        for _ in range(5):
            connection = await connect()
            connection[1].write(CHUNKED + b"80000\r\n")
            await pour(connection, b" " * 1000, 0x80000)
            assert (await answer_of(connection[0]))[0] == 413
            assert await is_closed(connection[0])


@pytest.mark.parametrize("half_closed", [False, True])
async def test_a_stream_that_is_not_read_is_given_up(*, half_closed: bool) -> None:
    engine = FakeEngine(reply=LONG)
    limits = ConnectionLimits(write_seconds=0.05)
    async with listening(limits, make_context(engine), buffer_bytes=4096) as connect:
        reader, writer = await connect()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(streaming(n=8, logprobs=5))
        while not engine.admitted:
            await asyncio.sleep(0.001)
        if half_closed:
            writer.write_eof()
        while connect.connections or not (half_closed or engine.aborted):
            await asyncio.sleep(0.001)
        assert (await exchange(await connect(), GET))[0] == 200


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
async def test_a_finished_answer_that_is_not_read_is_given_up(close: bytes) -> None:
    engine = FakeEngine(reply=LONG)
    limits = ConnectionLimits(write_seconds=0.05)
    async with listening(limits, make_context(engine), buffer_bytes=4096) as connect:
        reader, writer = await connect()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(streaming().replace(b"Host: x\r\n", b"Host: x\r\n" + close))
        while not engine.admitted or connect.connections:
            await asyncio.sleep(0.001)
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises(ConnectionError):
            await reader.read()
        assert engine.aborted == []


class FakeTransport:
    """Its client reads so many bytes of the buffer between two looks at it."""

    def __init__(self, unread: int, reads: int) -> None:
        self.unread = unread
        self.aborted = False
        self._reads = reads

    def write(self, data: bytes) -> None:
        self.unread += len(data)

    def get_write_buffer_size(self) -> int:
        self.unread -= min(self._reads, self.unread)
        return self.unread

    def get_extra_info(self, name: str) -> None:
        """It has no socket."""

    def abort(self) -> None:
        self.aborted = True


async def test_without_a_deadline_nobody_is_cut() -> None:
    transport = FakeTransport(20, reads=0)
    client = ClientTransport(
        cast(asyncio.Transport, transport), lambda: False, linger_seconds=1, linger_bytes=1, write_seconds=None
    )
    client.write(b"x" * 10)
    client.watch_writes()
    await asyncio.sleep(0.01)
    assert not transport.aborted
    client.lost()


@pytest.mark.parametrize("reads", [0, 1])
async def test_only_a_reader_that_takes_nothing_at_all_is_cut(reads: int) -> None:
    transport = FakeTransport(20, reads)
    client = ClientTransport(
        cast(asyncio.Transport, transport), lambda: False, linger_seconds=1, linger_bytes=1, write_seconds=0.001
    )
    client.watch_writes()
    client.write(b"x" * 10)
    while transport.unread and not transport.aborted:
        await asyncio.sleep(0.001)
    assert transport.aborted == (reads == 0)
    client.lost()
