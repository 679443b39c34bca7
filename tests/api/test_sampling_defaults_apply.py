"""The model's sampling defaults apply where a request says nothing, and nowhere else."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from numaserve.server.surfaces.openai.sampling_fields import SamplingFields
from numaserve.workers.interface.protocol import SamplingParams
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import FakeEngine, make_context

DEFAULTS = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.05}
OTHERS = {"temperature": 0.7, "top_p": 0.8, "top_k": 5, "min_p": 0.5, "repetition_penalty": 2.0}
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[TestClient]:
    context = replace(make_context(engine), sampling_defaults=SamplingFields.model_validate(DEFAULTS).sampling())
    with TestClient(app_over(context)) as client:
        yield client


def sampled(client: TestClient, engine: FakeEngine, path: str, **fields: Any) -> dict[str, float]:
    prompt = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    assert client.post(path, json={**prompt, **fields}).status_code == 200
    params: SamplingParams = engine.admitted[-1].sampling
    return {name: getattr(params, name) for name in DEFAULTS}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
class TestBothEndpoints:
    def test_a_silent_request_gets_all_of_them(self, client: TestClient, engine: FakeEngine, path: str) -> None:
        assert sampled(client, engine, path) == DEFAULTS

    @pytest.mark.parametrize("field", DEFAULTS)
    def test_null_is_silence(self, client: TestClient, engine: FakeEngine, path: str, field: str) -> None:
        assert sampled(client, engine, path, **{field: None}) == DEFAULTS

    @pytest.mark.parametrize("field", DEFAULTS)
    @pytest.mark.parametrize("values", [OTHERS, NEUTRAL])
    def test_what_a_request_says_wins_also_when_it_is_neutral(
        self, client: TestClient, engine: FakeEngine, path: str, field: str, values: dict[str, float]
    ) -> None:
        assert sampled(client, engine, path, **{field: values[field]}) == {**DEFAULTS, field: values[field]}

    def test_without_defaults_the_api_s_apply(self, engine: FakeEngine, path: str) -> None:
        with TestClient(app_over(make_context(engine))) as client:
            assert sampled(client, engine, path) == NEUTRAL


def test_they_are_shown(client: TestClient) -> None:
    assert client.get("/server_info").json()["sampling_defaults"] == DEFAULTS
