"""Over real sockets and every route, with and without a key: what a request may bring besides itself is not kept."""

import asyncio
import tracemalloc

import pytest
from numaserve.server.connection.bounds import ConnectionLimits
from raw_clients import Connect, exchange, listening, pour

from tests.support.api_fakes import FakeEngine, make_context
from tests.support.app_routes import ROUTES

KEY = b"key-of-a-test"
LIMITS = ConnectionLimits(linger_bytes=1 << 16)
SENT_BYTES = 8 << 20
# Of the 8 MiB that a client would send: what one read brings, once as bytes and once parsed, and the client's own part.
HELD_BYTES = 3 << 19

HEADS = {
    "chunked": b"Transfer-Encoding: chunked\r\n\r\n",
    "sized": b"Content-Length: 100000000\r\n\r\n",
    "empty": b"Content-Length: 0\r\n\r\n",
}
FLOODS = {
    "headers": (b"", b"a: b\r\n" * 2000),
    "a header": (b"a: ", b"b" * 12000),
    "extensions": (HEADS["chunked"] + b"2;", b"a=b;" * 3000),
    "trailers": (HEADS["chunked"] + b"2\r\n{}\r\n0\r\n", b"a: b\r\n" * 2000),
    "a trailer": (HEADS["chunked"] + b"2\r\n{}\r\n0\r\na: ", b"b" * 12000),
    "a body": (HEADS["sized"], b" " * 12000),
    "requests": (HEADS["empty"], b"%b" + HEADS["empty"]),
}


async def flood(connect: Connect, head: bytes, kind: str) -> int:
    """Send until the server ends it; the bytes that were sent."""
    start, piece = FLOODS[kind]
    connection = await connect()
    connection[1].write(head + start)
    try:
        return await pour(connection, piece.replace(b"%b", head) * (100 if kind == "requests" else 1), SENT_BYTES)
    finally:
        connection[1].transport.abort()


# Each route is flooded in some ways in the fast set, and in each way with a key and without one in the slow set.
@pytest.mark.parametrize(
    ("turn", "one_in"), [(0, 3), *(pytest.param(turn, 1, marks=pytest.mark.slow) for turn in (0, 1))]
)
@pytest.mark.parametrize("kind", FLOODS)
def test_no_route_lets_a_client_fill_the_memory(kind: str, turn: int, one_in: int) -> None:
    async def scenario() -> None:
        context = make_context(FakeEngine(), keys=[KEY.decode()], max_body_bytes=1 << 18)
        async with listening(LIMITS, context) as connect:
            probe = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
            await exchange(await connect(), probe)
            # The first of these makes and keeps the document.
            await exchange(await connect(), b"GET /openapi.json HTTP/1.1\r\nAuthorization: Bearer %b\r\n\r\n" % KEY)
            tracemalloc.start()  # now: making the server takes four times as long while it is traced
            first = list(FLOODS).index(kind)
            for number, (method, path) in [*enumerate(ROUTES, first + turn)][first % one_in :: one_in]:
                key = b"Authorization: Bearer " + KEY + b"\r\n" if number % 2 else b""
                head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode() + key
                before, _ = tracemalloc.get_traced_memory()
                tracemalloc.reset_peak()
                sent = await flood(connect, head, kind)
                _, peak = tracemalloc.get_traced_memory()
                assert sent < SENT_BYTES, (method, path)
                assert peak - before < HELD_BYTES, (method, path, peak - before)
                assert (await exchange(await connect(), probe))[0] == 200

    try:
        asyncio.run(scenario())
    finally:
        tracemalloc.stop()
