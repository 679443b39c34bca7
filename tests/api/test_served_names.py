"""One model under several names."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from shared_apps import app_over
from starlette.testclient import TestClient

from tests.support.api_fakes import MODEL, FakeEngine, make_context

NAMES = [MODEL, "gpt-4o", "team/another"]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [97]},
}


@pytest.fixture
def client() -> Iterator[TestClient]:
    context = replace(make_context(FakeEngine()), other_names=tuple(NAMES[1:]))
    with TestClient(app_over(context)) as client:
        yield client


@pytest.mark.parametrize("name", [None, *NAMES])
@pytest.mark.parametrize("path", BODIES)
def test_a_request_may_have_any_of_the_names_and_answers_have_the_first(
    client: TestClient, path: str, name: str | None
) -> None:
    answer = client.post(path, json={**BODIES[path], "model": name})
    assert answer.status_code == 200
    assert answer.json().get("model", MODEL) == MODEL


@pytest.mark.parametrize("path", BODIES)
def test_another_name_is_still_not_found(client: TestClient, path: str) -> None:
    answer = client.post(path, json={**BODIES[path], "model": "gpt-4"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def test_every_name_is_listed_and_found(client: TestClient) -> None:
    models = client.get("/v1/models").json()["data"]
    assert [model["id"] for model in models] == NAMES
    assert [client.get(f"/v1/models/{name}").json() for name in NAMES] == models
    assert client.get("/v1/models/gpt-4").status_code == 404
    assert client.get("/server_info").json()["served_model_names"] == NAMES


def test_a_list_of_models_shows_no_path() -> None:
    context = replace(
        make_context(FakeEngine()), other_names=("alias",), own_name="org/model", model_path="/srv/models/x"
    )
    with TestClient(app_over(context)) as client:
        listed = client.get("/v1/models")
        assert {model["root"] for model in listed.json()["data"]} == {"org/model"}
        assert "/srv" not in listed.text
