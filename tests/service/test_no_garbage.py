"""What a request leaves behind when it has ended.

A full collection of garbage is rare in a large process: what only that one frees, whole requests with their grammars
among it, is megabytes until then, and the heap grows to hold them.
"""

import asyncio
import gc
import json
from collections.abc import Iterator

import pytest
from numaserve.server.connection.bounds import ConnectionLimits

from tests.service.raw_clients import Connect, Connection, listening
from tests.support.api_fakes import FakeEngine, make_context

_TURN = [{"role": "user", "content": "Say"}]
_ANSWERED = {
    "/v1/completions": {"prompt": ["x", "y"], "n": 2},
    "/v1/chat/completions": {"messages": _TURN, "stream": True},
    "/v1/responses": {"input": "x", "stream": True, "store": False},
    "/v1/messages": {"messages": _TURN, "max_tokens": 9, "stream": True},
    "/api/chat": {"messages": _TURN},
    "/generate": {"text": "x"},
    "/v1/tokenize": {"nothing": "that is known"},
}
_OURS = ("numaserve", "uvicorn", "starlette", "fastapi")


@pytest.fixture
def garbage() -> Iterator[list[object]]:
    """Where collections put what they find from now on."""
    gc.collect()
    # What other tests have made, and may only let go of now, is not looked at. It stays frozen, as what collecting the
    # tests made is from the beginning: to look through all of that again takes most of the time of a later test.
    gc.freeze()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def ours(garbage: list[object]) -> set[str]:
    """The types of what was found, but for those of the test's own client."""
    gc.collect()
    found = {f"{type(each).__module__}.{type(each).__qualname__}" for each in garbage}
    garbage.clear()
    return {name for name in found if name.startswith(_OURS)}


async def post(connection: Connection, path: str, body: object, *, close: bool) -> None:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    connection[1].write(head.encode() + b"Connection: close\r\n" * close + b"\r\n" + data)


async def nobody_is_connected(connect: Connect) -> None:
    while connect.connections:
        await asyncio.sleep(0.001)
    for _ in range(3):  # tasks of requests end
        await asyncio.sleep(0)


@pytest.mark.parametrize("path", _ANSWERED)
async def test_an_answered_request_is_gone_without_a_collection(path: str, garbage: list[object]) -> None:
    async with listening(ConnectionLimits()) as connect:
        for _ in range(2):  # what is kept of the first one is kept once
            connection = await connect()
            await post(connection, path, _ANSWERED[path], close=True)
            assert await connection[0].read()
            await nobody_is_connected(connect)
            found = ours(garbage)
        assert found == set()


async def test_a_client_that_leaves_amid_a_stream_is_gone_without_a_collection(garbage: list[object]) -> None:
    engine = FakeEngine()
    engine.pause_after = 1
    async with listening(ConnectionLimits(), make_context(engine)) as connect:
        for _ in range(2):
            connection = await connect()
            await post(connection, "/v1/completions", {"prompt": "x", "stream": True}, close=False)
            await post(connection, "/v1/completions", {"prompt": "behind it"}, close=False)
            await connection[0].readuntil(b"data: ")
            connection[1].transport.abort()
            await nobody_is_connected(connect)
            found = ours(garbage)
        assert found == set()
