"""What the bodies of all requests together may hold, at the ASGI layer, where every arrival is in the test's hands."""

import asyncio
import gc
import json
import sys
from dataclasses import replace
from typing import Any

import pytest
from numaserve.server.app.application import ApiContext
from numaserve.server.app.middleware.body_limit import FREE_BYTES
from numaserve.server.app.middleware.heap import HeapTrimmer
from shared_apps import app_over

from tests.support.api_fakes import MODEL, FakeEngine, make_context, outcomes

MIB = 1 << 20
BODY = json.dumps({"model": MODEL, "prompt": "x"}).encode()


def context_with(max_bytes_in_flight: int) -> ApiContext:
    context = make_context(FakeEngine())
    return replace(context, limits=replace(context.limits, max_bytes_in_flight=max_bytes_in_flight))


class Client:
    """One request whose body is sent piece by piece; `sent` is what the server answers."""

    def __init__(self, app: Any) -> None:
        self.sent: list[Any] = []
        self._incoming: asyncio.Queue[Any] = asyncio.Queue()
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % MIB)],
        }
        self._task = asyncio.create_task(app(scope, self._incoming.get, self._keep))

    async def _keep(self, message: Any) -> None:
        self.sent.append(message)

    async def send(self, body: bytes, *, more: bool = True) -> None:
        """Send a piece, and wait until the server waits for the next or is done."""
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": more})
        while not self._incoming.empty() and not self._task.done():
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)

    async def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})
        await self._task

    async def answer(self) -> tuple[int, dict[bytes, bytes], Any]:
        await self._task
        return self.sent[0]["status"], dict(self.sent[0]["headers"]), json.loads(self.sent[1]["body"])


async def test_a_body_beyond_the_budget_of_all_is_told_to_come_back() -> None:
    context = context_with(MIB)
    app = app_over(context)
    holders = [Client(app) for _ in range(2)]
    for holder in holders:
        await holder.send(b" " * (FREE_BYTES + MIB // 2))
        assert holder.sent == []
    late = Client(app)
    await late.send(b" " * FREE_BYTES)
    assert late.sent == []
    await late.send(b" ")
    status, headers, body = await late.answer()
    assert status == 429
    assert headers[b"retry-after"] == b"1"
    assert headers[b"connection"] == b"close"
    assert body["error"]["code"] == "rate_limit_exceeded"
    assert outcomes(context, "queue_full") == 1
    for holder in holders:
        await holder.leave()


async def test_small_bodies_are_served_while_large_ones_hold_the_budget() -> None:
    app = app_over(context_with(MIB))
    holder = Client(app)
    await holder.send(b" " * (FREE_BYTES + MIB))
    small = Client(app)
    await small.send(BODY, more=False)
    assert (await small.answer())[0] == 200
    await holder.leave()


@pytest.mark.parametrize("end", ["an answer", "a refusal", "a departure"])
async def test_what_a_body_held_is_given_back_with_its_request(end: str) -> None:
    app = app_over(context_with(MIB // 2))
    for _ in range(3):
        client = Client(app)
        await client.send(b" " * (FREE_BYTES + MIB // 2))
        assert client.sent == []
        if end == "a departure":
            await client.leave()
        else:
            await client.send(BODY if end == "a refusal" else b"", more=False)
            await client.answer()


@pytest.mark.parametrize("end", ["an answer", "a refusal", "a departure"])
def test_a_body_is_freed_with_its_request_and_not_when_garbage_is_collected(end: str) -> None:
    async def scenario() -> None:
        client = Client(app_over(context_with(MIB // 2)))
        piece = b" " * (FREE_BYTES + MIB // 2)
        references = sys.getrefcount(piece)
        await client.send(piece)
        assert sys.getrefcount(piece) > references
        if end == "a departure":
            await client.leave()
            assert client.sent[0]["status"] == 499  # for the log
        else:
            await client.send(BODY if end == "a refusal" else b"", more=False)
            await client.answer()
        assert sys.getrefcount(piece) == references

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()


async def test_announcing_a_body_takes_nothing_from_the_budget() -> None:
    app = app_over(context_with(MIB))
    idle = [Client(app) for _ in range(20)]
    await asyncio.sleep(0)
    client = Client(app)
    await client.send(b" " * (MIB // 2) + BODY, more=False)
    assert (await client.answer())[0] == 200
    for each in idle:
        await each.leave()


async def test_memory_is_given_back_once_for_all_that_is_freed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numaserve.server.app.middleware.heap._DELAY_S", 0.01)
    calls: list[int] = []
    trimmer = HeapTrimmer(calls.append)
    trimmer.released(MIB)
    await asyncio.sleep(0.05)
    assert calls == []
    for _ in range(64):
        trimmer.released(MIB)
    while not calls:
        await asyncio.sleep(0.01)
    trimmer.released(64 * MIB)
    while len(calls) < 2:
        await asyncio.sleep(0.01)
    assert calls == [0, 0]
