import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from numaserve.server.app.application import ApiContext, create_app
from numaserve.server.engine.types import GenerationFailed, QueueFull, RequestTooLong
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, FakeEngine, make_context, outcomes

BODY: dict[str, Any] = {"model": MODEL, "prompt": "hi"}


def complete(client: TestClient, **fields: Any) -> Any:
    return client.post("/v1/completions", json={**BODY, **fields})


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_answers_429(client: TestClient, engine: FakeEngine, context: ApiContext, stream: bool) -> None:
    engine.refusal = QueueFull("512 requests wait already.", retry_after=3)
    answer = complete(client, stream=stream)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "3"
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert outcomes(context, "queue_full") == 1


def test_draining_answers_503_before_any_work(client: TestClient, engine: FakeEngine, context: ApiContext) -> None:
    engine.ready = False
    answer = complete(client)
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "server_error"
    assert engine.admitted == []
    assert outcomes(context, "not_ready") == 1


def test_what_the_kv_cache_cannot_hold_answers_400(client: TestClient, engine: FakeEngine, context: ApiContext) -> None:
    engine.refusal = RequestTooLong("The KV cache holds 64 tokens.")
    answer = complete(client)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert outcomes(context, "too_long") == 1


def test_when_one_of_n_fails_the_others_are_aborted(client: TestClient, engine: FakeEngine) -> None:
    engine.fail_after = 2
    engine.failure = GenerationFailed("A worker died.")
    assert complete(client, n=3).status_code == 500
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.admitted)


@pytest.mark.parametrize("stream", [False, True])
def test_an_unexpected_error_leaks_nothing(
    client: TestClient, engine: FakeEngine, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    engine.fail_after = 1
    engine.failure = RuntimeError("secret path /etc/passwd")
    with caplog.at_level(logging.ERROR):
        answer = complete(client, stream=stream)
    assert answer.status_code == (200 if stream else 500)
    assert "secret" not in answer.text
    assert '"code":"internal_error"' in answer.text
    assert "secret path" in caplog.text


def test_an_error_in_admission_is_answered_and_counted_nowhere(client: TestClient, engine: FakeEngine) -> None:
    engine.refusal = RuntimeError("bug")
    answer = complete(client)
    assert answer.status_code == 500
    assert answer.headers["x-request-id"]
    engine.refusal = None
    assert complete(client).status_code == 200


def test_invalid_bodies_are_counted(client: TestClient, context: ApiContext) -> None:
    complete(client, temperature=9)
    client.post("/v1/completions", content=b"{", headers={"Content-Type": "application/json"})
    assert outcomes(context, "invalid") == 2


def test_a_refused_key_is_counted(engine: FakeEngine) -> None:
    context = make_context(engine, keys=["k"])
    TestClient(create_app(context)).get("/v1/models")
    assert outcomes(context, "unauthorized") == 1


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_too_large_answers_413(engine: FakeEngine, chunked: bool) -> None:
    context = make_context(engine, max_body_bytes=1000)
    content = json.dumps({**BODY, "user": "x" * 1000}).encode()

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(content), 100):
            yield content[start : start + 100]

    with TestClient(create_app(context)) as client:
        answer = client.post(
            "/v1/completions", content=pieces() if chunked else content, headers={"Content-Type": "application/json"}
        )
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"
    assert outcomes(context, "too_large") == 1


def test_a_body_of_exactly_the_limit_is_served(engine: FakeEngine) -> None:
    content = json.dumps(BODY).encode()
    with TestClient(create_app(make_context(engine, max_body_bytes=len(content)))) as client:
        answer = client.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
