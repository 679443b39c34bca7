"""Over real sockets: bodies that are more frame than content, and requests that are none."""

import asyncio
import json
from typing import Any

import pytest
from numaserve.server.connection.bounds import ConnectionLimits
from raw_clients import BODY, CHUNKED, COMPLETE, GET, POST, answer_of, exchange, is_closed, is_served, listening, pour

from tests.support.api_fakes import REPLY, FakeEngine, make_context

LIMITS = ConnectionLimits(framing_bytes=4096, linger_bytes=1 << 16)
MUCH = 4 << 20

ENDLESS = {
    "trailers": (b"2\r\n{}\r\n0\r\n", b"a: b\r\n" * 200),
    "a trailer": (b"2\r\n{}\r\n0\r\na: ", b"b" * 1000),
    "a trailer's name": (b"2\r\n{}\r\n0\r\n", b"b" * 1000),
    "a chunk's extension": (b"2;a=", b"b" * 1000),
    "a chunk's size": (b"", b"0" * 1000),
    "chunks of one byte": (b"", b"1\r\n \r\n" * 200),
    "chunks with extensions": (b"", b"1;abcdefgh\r\n \r\n" * 200),
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_what_is_no_content_has_a_bound(what: str) -> None:
    start, piece = ENDLESS[what]
    async with listening(LIMITS) as connect:
        connection = await connect()
        connection[1].write(CHUNKED + start)
        sending = asyncio.create_task(pour(connection, piece, MUCH))
        status, body = await answer_of(connection[0])
        assert status == 400
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert await is_closed(connection[0])
        assert await sending < MUCH
        await is_served(connect)


async def test_small_chunks_are_served_however_many() -> None:
    content = BODY + b" " * 100_000
    chunks = [b"8\r\n" + content[at : at + 8] + b"\r\n" for at in range(0, len(content) // 8 * 8, 8)]
    rest = content[len(content) // 8 * 8 :]
    chunks.append(b"%x\r\n%s\r\n0\r\n\r\n" % (len(rest), rest) if rest else b"0\r\n\r\n")
    async with listening(LIMITS) as connect:
        connection = await connect()
        connection[1].write(CHUNKED)
        for at in range(0, len(chunks), 100):
            connection[1].write(b"".join(chunks[at : at + 100]))
            await asyncio.sleep(0)
        status, body = await answer_of(connection[0])
        assert (status, body["choices"][0]["text"]) == (200, REPLY)


async def test_trailers_are_not_taken_for_headers() -> None:
    async with listening(LIMITS, make_context(FakeEngine(), keys=["k"])) as connect:
        connection = await connect()
        request = CHUNKED + b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
        assert (await exchange(connection, request + b"Authorization: Bearer k\r\n\r\n"))[0] == 401
        allowed = CHUNKED[:-2] + b"Authorization: Bearer k\r\n\r\n" + request.removeprefix(CHUNKED)
        trailers = b"".join(b"x-%d: y\r\n" % index for index in range(200))
        assert (await exchange(connection, allowed + trailers + b"\r\n"))[0] == 200


INVALID = {
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "another version": b"GET /version HTTP/3.0\r\n\r\n",
    "no method": b"/version HTTP/1.1\r\n\r\n",
    "a path that is not ASCII": b"GET /\xff HTTP/1.1\r\n\r\n",
    "a space before a colon": b"GET /version HTTP/1.1\r\nHost : x\r\n\r\n",
    "a zero byte": b"GET /version HTTP/1.1\r\nHost: \x00\r\n\r\n",
    "a folded header": b"GET /version HTTP/1.1\r\na: b\r\n c: d\r\n\r\n",
    "two lengths": POST + b"Content-Length: 15\r\nContent-Length: 16\r\n\r\n" + BODY,
    "a length and chunks": POST + b"Content-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 15\r\n\r\n0\r\n\r\n",
    "chunks twice": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "a negative length": POST + b"Content-Length: -1\r\n\r\n",
    "a huge length": POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n",
    "a chunk size that is no number": CHUNKED + b"x\r\n",
    "a huge chunk size": CHUNKED + b"f" * 17 + b"\r\n",
    "a chunk longer than its size": CHUNKED + b"2\r\n{}{}\r\n",
    "lines that end in LF": b"POST /v1/completions HTTP/1.1\nTransfer-Encoding: chunked\n\n2\n{}\n0\n\n",
}


@pytest.mark.parametrize("kind", INVALID)
async def test_what_is_no_request_is_refused_in_the_usual_shape(kind: str) -> None:
    engine = FakeEngine()
    async with listening(LIMITS, make_context(engine)) as connect:
        connection = await connect()
        status, body = await exchange(connection, INVALID[kind])
        assert status == 400
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert await is_closed(connection[0])
        assert engine.admitted == []
        await is_served(connect)


async def test_garbage_behind_a_request_does_not_get_into_its_answer() -> None:
    async with listening(LIMITS) as connect:
        connection = await connect()
        connection[1].write(COMPLETE + b"garbage\r\n\r\n")
        status, body = await answer_of(connection[0])
        assert (status, body["choices"][0]["text"]) == (200, REPLY)
        assert await is_closed(connection[0])


@pytest.mark.parametrize("in_pieces", [False, True])
async def test_a_request_that_asks_for_another_protocol_is_served_in_this_one(*, in_pieces: bool) -> None:
    content = json.dumps({"prompt": "x", "user": "u" * 1000}).encode()
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
    request = POST + upgrade + b"Content-Length: %d\r\n\r\n" % len(content) + content
    async with listening(LIMITS) as connect:
        connection = await connect()
        for _ in range(2):  # the connection is as good as any afterwards
            for at in range(0, len(request), 60) if in_pieces else [0]:
                connection[1].write(request[at : at + 60] if in_pieces else request)
                await asyncio.sleep(0)
            status, body = await answer_of(connection[0])
            assert (status, body["choices"][0]["text"]) == (200, REPLY)
        assert (await exchange(connection, GET))[0] == 200


async def test_a_tunnel_is_refused() -> None:
    async with listening(LIMITS) as connect:
        connection = await connect()
        status, _ = await exchange(connection, b"CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n")
        assert status in (400, 405)
        assert await is_closed(connection[0])


@pytest.mark.parametrize("status", [200, 401])
async def test_a_client_that_asks_before_it_sends_its_body_gets_its_answer(status: int) -> None:
    context: Any = make_context(FakeEngine(), keys=["k"] if status == 401 else [])
    async with listening(LIMITS, context) as connect:
        reader, writer = await connect()
        writer.write(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
        if status == 200:
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(BODY)
        assert (await answer_of(reader))[0] == status
