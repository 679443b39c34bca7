"""When a stream begins, and what it sends while there is nothing to send."""

import asyncio
import json
from typing import Any

import pytest
from numaserve.server.engine.types import EngineError, GenerationFailed, NotReady
from shared_apps import app_over
from starlette.types import Message, Send
from whole_answers import TestClient

from tests.support.api_fakes import REPLY, FakeEngine, make_context

BODY = json.dumps({"prompt": "x", "stream": True}).encode()


async def serve(engine: FakeEngine, send: Send, left: asyncio.Event | None = None, **settings: Any) -> None:
    """Serve one request; the client leaves when `left` is set."""
    app = app_over(make_context(engine, **settings))
    leaves = left or asyncio.Event()
    body: list[Message] = [{"type": "http.request", "body": BODY, "more_body": False}]

    async def receive() -> Message:
        if body:
            return body.pop()
        await leaves.wait()
        return {"type": "http.disconnect"}

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": headers}
    await app({**scope, "http_version": "1.1"}, receive, send)


async def request(engine: FakeEngine, until: int, **settings: Any) -> list[Message]:
    """The first `until` messages of the answer; the client leaves then."""
    sent: asyncio.Queue[Message] = asyncio.Queue()
    left = asyncio.Event()
    task = asyncio.create_task(serve(engine, sent.put, left, **settings))
    messages = [await sent.get() for _ in range(until)]
    left.set()
    await task
    return messages


def test_a_stream_without_output_says_that_it_lives() -> None:
    engine = FakeEngine(pause_after=0)
    head, *pings = asyncio.run(request(engine, 4, sse_ping_seconds=0.01))
    assert head["status"] == 200
    assert [ping["body"] for ping in pings] == [b": ping\n\n"] * 3
    assert len(engine.aborted) == 1


def test_comments_come_between_events_too() -> None:
    messages = asyncio.run(request(FakeEngine(pause_after=2), 5, sse_ping_seconds=0.01))
    bodies = [message["body"] for message in messages[1:]]
    assert bodies[0].startswith(b"data: ")
    assert bodies[-1] == b": ping\n\n"


def test_a_stream_with_output_has_no_comments(shared_client: TestClient, shared_engine: FakeEngine) -> None:
    vars(shared_engine).update(vars(FakeEngine()))
    text = shared_client.post("/v1/completions", json={"prompt": "x", "stream": True}).text
    assert ": ping" not in text
    assert text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("failure", "status"),
    [(GenerationFailed("A worker died."), 500), (NotReady("draining"), 503), (KeyError("x"), 500)],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_fails_before_the_first_event_has_its_own_status(
    client: TestClient, engine: FakeEngine, path: str, failure: EngineError, status: int
) -> None:
    engine.fail_after, engine.failure = 0, failure
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "stream": True}
    answer = client.post(path, json=body)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_what_fails_after_a_comment_is_an_event() -> None:
    engine = FakeEngine(delay=0.05, fail_after=0, failure=GenerationFailed("A worker died."))
    app = app_over(make_context(engine, sse_ping_seconds=0.01))
    text = TestClient(app).post("/v1/completions", content=BODY, headers={"Content-Type": "application/json"}).text
    assert text.startswith(": ping\n\n")
    *_, last, done = (part for part in text.split("\n\n") if part.startswith("data: "))
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == "A worker died."
    assert done == "data: [DONE]"


def test_a_comment_that_is_due_while_the_end_is_sent_does_not_follow_the_end() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        if message.get("more_body") is False:
            await asyncio.sleep(0.05)

    asyncio.run(serve(FakeEngine(), send, sse_ping_seconds=0.01))
    assert [message.get("more_body") for message in sent].index(False) == len(sent) - 1


def test_no_comments_are_sent_when_they_are_off() -> None:
    app = app_over(make_context(FakeEngine(), sse_ping_seconds=0.0))
    text = TestClient(app).post("/v1/completions", content=BODY, headers={"Content-Type": "application/json"}).text
    texts = [json.loads(part.removeprefix("data: "))["choices"][0]["text"] for part in text.split("\n\n")[:-2]]
    assert "".join(texts) == REPLY
