"""Errors that say what there is and when to try again, in the form of each surface."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, FakeEngine, make_context
from tests.support.error_forms import error_message

CHAT = {"messages": [{"role": "user", "content": "x"}]}
PAIRS = {"query": "x", "documents": ["y"]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/embeddings": {"input": "x"},
    "/v1/messages": CHAT | {"max_tokens": 4},
    "/v1/rerank": PAIRS,
    "/v2/rerank": PAIRS,
    "/rerank": {"query": "x", "texts": ["y"]},
    "/v2/embed": {"texts": ["x"], "input_type": "search_query", "embedding_types": ["float"]},
    "/embed": {"inputs": "x"},
    "/embed_sparse": {"inputs": "x"},
    "/predict": {"inputs": "x"},
    "/api/chat": CHAT,
    "/api/embed": {"input": "x"},
    "/generate": {"text": "x"},
    "/tokenize": {"prompt": "x"},
}
NAMES = ["one", "two", "three", "four", "five", "six"]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[TestClient]:
    with TestClient(app_over(replace(make_context(engine), other_names=tuple(NAMES)))) as client:
        yield client


@pytest.mark.parametrize("path", BODIES)
def test_a_wrong_model_is_answered_with_the_names_of_some_and_the_list(client: TestClient, path: str) -> None:
    answer = client.post(path, json=BODIES[path] | {"model": "gpt-4"})
    assert answer.status_code == 404
    assert error_message(answer) == (
        f"The model 'gpt-4' does not exist. The server has '{MODEL}', 'one', 'two', 'three', 'four' and 2 more; "
        "GET /v1/models lists all."
    )


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/v1/nothing"])
def test_an_unknown_path_is_answered_with_the_description_of_the_others(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert error_message(answer) == f"Unknown request URL: GET {path}. GET /openapi.json describes all routes."
    assert client.get("/openapi.json").status_code == 200


@pytest.mark.parametrize("path", ["/health", "/v1/chat/completions", "/v1/messages", "/api/chat", "/generate"])
def test_a_server_that_is_not_ready_says_when_to_try_again(client: TestClient, engine: FakeEngine, path: str) -> None:
    engine.ready = False
    answer = client.post(path, json=BODIES[path] | {"model": MODEL}) if path in BODIES else client.get(path)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert error_message(answer)
