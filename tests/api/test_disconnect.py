import asyncio
import json
import logging
from typing import Any

import httpx
import pytest
from numaserve.server.app.application import create_app
from shared_apps import app_over

from tests.support.api_fakes import MODEL, FakeEngine, make_context

PATHS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
}


def leave_early(engine: FakeEngine, path: str, fields: dict[str, Any], *, stuck: bool = False) -> list[Any]:
    """Serve one request whose client leaves as soon as the engine pauses; the messages sent until then.

    With `stuck` the connection takes no more data from the second event on, as that of a client which does not read.
    """
    body = json.dumps({**PATHS[path], **fields}).encode()
    sent: list[Any] = []

    async def run() -> None:
        gone = asyncio.Event()
        incoming = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if incoming:
                return incoming.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if stuck and len(sent) > 2:
                await asyncio.Event().wait()

        app = app_over(make_context(engine))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        request = asyncio.create_task(app(scope, receive, send))
        while not engine.admitted:
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not request.done()
        gone.set()
        await asyncio.wait_for(request, 10)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    return sent


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("pause_after", [0, 2])
def test_a_client_that_leaves_aborts_its_sequences(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture, *, path: str, stream: bool, n: int, pause_after: int
) -> None:
    engine.pause_after = pause_after
    caplog.set_level(logging.INFO, logger="numaserve.request")
    leave_early(engine, path, {"stream": stream, "n": n})
    assert getattr(caplog.records[-1], "fields")["finish_reason"] == "abort"  # noqa: B009
    assert len(engine.admitted) == n
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.admitted)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_stops_reading_and_leaves_aborts_its_sequences(engine: FakeEngine, path: str, n: int) -> None:
    sent = leave_early(engine, path, {"stream": True, "n": n}, stuck=True)
    assert len(sent) == 3
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.admitted)


def test_a_finished_stream_aborts_nothing(engine: FakeEngine) -> None:
    async def run() -> None:
        transport = httpx.ASGITransport(app_over(make_context(engine)))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.post("/v1/completions", json={**PATHS["/v1/completions"], "stream": True, "n": 3})
            assert answer.text.endswith("data: [DONE]\n\n")

    asyncio.run(run())
    assert len(engine.admitted) == 3
    assert engine.aborted == []


def test_a_body_that_does_not_arrive_in_time_answers_408(engine: FakeEngine) -> None:
    sent: list[Any] = []

    async def run() -> None:
        first = [{"type": "http.request", "body": b"{", "more_body": True}]

        async def receive() -> Any:
            if not first:
                await asyncio.Event().wait()
            return first.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        app = create_app(make_context(engine, body_timeout_seconds=0.01))
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        await asyncio.wait_for(app(scope, receive, send), 10)

    asyncio.run(run())
    assert sent[0]["status"] == 408


def test_a_websocket_is_closed_without_a_look(engine: FakeEngine) -> None:
    sent: list[Any] = []

    async def run() -> None:
        async def receive() -> Any:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await app_over(make_context(engine))({"type": "websocket", "path": "/", "headers": []}, receive, send)

    asyncio.run(run())
    assert [message["type"] for message in sent] == ["websocket.close"]
