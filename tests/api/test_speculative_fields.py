"""`prediction` and `speculative`: what may be used to draft an answer."""

from typing import Any

import pytest
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import CONTEXT, FakeEngine, make_context

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> TestClient:
    return TestClient(app_over(make_context(engine, takes_predictions=True)))


def post(client: TestClient, path: str = CHAT, **fields: Any) -> Any:
    return client.post(path, json=BODIES[path] | fields)


def test_of_one_longer_than_the_context_the_beginning_is_used(client: TestClient, engine: FakeEngine) -> None:
    assert post(client, prediction={"type": "content", "content": "x" * (CONTEXT + 1)}).status_code == 200
    assert len(engine.admitted[0].prediction) == CONTEXT


def test_one_so_long_that_it_is_not_even_counted_is_refused(client: TestClient, engine: FakeEngine) -> None:
    answer = post(client, prediction={"type": "content", "content": "x" * (CONTEXT * 256 + 1)})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prediction"
    assert "characters cannot fit" in answer.json()["error"]["message"]
    assert engine.admitted == []
