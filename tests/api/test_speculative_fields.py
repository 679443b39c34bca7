"""`prediction` and `speculative`: what may be used to draft an answer."""

from typing import Any

import pytest
from numaserve.server.speculation.server_drafters import DRAFTERS
from shared_apps import app_over
from starlette.testclient import TestClient

from tests.support.api_fakes import CONTEXT, FakeEngine, make_context

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
}
TEXT = {"type": "content", "content": "abc"}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> TestClient:
    return TestClient(app_over(make_context(engine, takes_predictions=True)))


def post(client: TestClient, path: str = CHAT, **fields: Any) -> Any:
    return client.post(path, json=BODIES[path] | fields)


@pytest.mark.parametrize(
    "content",
    ["abc", [{"type": "text", "text": "abc"}], [{"type": "text", "text": ""}, {"type": "text", "text": "abc"}]],
)
def test_a_prediction_goes_to_the_engine_as_tokens_for_every_choice(
    client: TestClient, engine: FakeEngine, content: object
) -> None:
    assert post(client, prediction={"type": "content", "content": content}, n=2).status_code == 200
    assert {bytes(list(each.prediction)).strip() for each in engine.admitted} == {b"abc"}
    assert len(engine.admitted) == 2


def test_usage_tells_what_became_of_it(client: TestClient, engine: FakeEngine) -> None:
    engine.predicted = 3, 4
    details = post(client, prediction=TEXT, n=2).json()["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": 0, "accepted_prediction_tokens": 6, "rejected_prediction_tokens": 8}


def test_without_one_usage_says_nothing_of_it(client: TestClient) -> None:
    assert post(client).json()["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_a_server_that_does_not_use_predictions_takes_no_time_for_them(engine: FakeEngine) -> None:
    client = TestClient(app_over(make_context(engine)))
    assert post(client, prediction={"type": "content", "content": "x" * 1000}).status_code == 200
    assert engine.admitted[0].prediction == ()


def test_of_one_longer_than_the_context_the_beginning_is_used(client: TestClient, engine: FakeEngine) -> None:
    assert post(client, prediction={"type": "content", "content": "x" * (CONTEXT + 1)}).status_code == 200
    assert len(engine.admitted[0].prediction) == CONTEXT


def test_one_so_long_that_it_is_not_even_counted_is_refused(client: TestClient, engine: FakeEngine) -> None:
    answer = post(client, prediction={"type": "content", "content": "x" * (CONTEXT * 256 + 1)})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prediction"
    assert "characters cannot fit" in answer.json()["error"]["message"]
    assert engine.admitted == []


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("abc", "prediction"),
        ({"type": "text", "content": "abc"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": [{"type": "image_url"}]}, "prediction.content[0]"),
    ],
)
def test_another_shape_is_refused_by_its_place(client: TestClient, prediction: object, param: str) -> None:
    answer = post(client, prediction=prediction)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("value", "drafters"),
    [
        ("off", frozenset[str]()),
        ("auto", frozenset(DRAFTERS)),
        ("suffix", frozenset(("suffix",))),
        (["suffix", "prediction"], frozenset(("prediction", "suffix"))),
        (None, None),
    ],
)
def test_a_request_chooses_its_drafters(
    client: TestClient, engine: FakeEngine, path: str, value: object, drafters: frozenset[str] | None
) -> None:
    assert post(client, path, speculative=value).status_code == 200
    assert engine.admitted[0].drafters == drafters


@pytest.mark.parametrize("value", ["on", [], ["off", "suffix"], ["auto", "auto", "off"], 1, {"suffix": True}])
def test_another_choice_is_refused(client: TestClient, engine: FakeEngine, value: object) -> None:
    answer = post(client, speculative=value)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("speculative")
    assert engine.admitted == []
