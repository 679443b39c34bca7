"""Applications that tests share are as new for each of them."""

from dataclasses import replace
from typing import Any

import pytest
from numaserve.server.app.application import ApiContext, create_app
from numaserve.server.generation.purpose import Embeds
from shared_apps import READ_LATER, app_over
from whole_answers import TestClient

from tests.support.api_fakes import EMBEDDING_SIZE, FakeEngine, make_context


class Watched(ApiContext):
    """A context that notes which of its fields are read."""

    read: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        Watched.read.add(name)
        return super().__getattribute__(name)


def test_an_application_reads_the_fields_that_may_differ_at_requests_alone() -> None:
    context = Watched(**vars(make_context(FakeEngine())))
    Watched.read.clear()
    create_app(context)
    assert {"limits", "ui"} <= Watched.read  # those are noted that are read
    assert Watched.read & READ_LATER == {"created", "vision"}


def test_an_application_is_made_once_for_the_same_options() -> None:
    app = app_over(make_context(FakeEngine()))
    assert app_over(make_context(FakeEngine(), purpose=Embeds(EMBEDDING_SIZE))) is app
    assert app_over(make_context(FakeEngine(), context_length=99)) is not app


def test_nothing_of_an_earlier_test_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="numaserve")
    answers = []
    for _ in range(2):
        engine = FakeEngine()
        caplog.clear()
        with TestClient(app_over(make_context(engine))) as client:
            answers.append(client.post("/v1/responses", json={"input": "x", "unknown": 1}).json())
            assert client.get(f"/v1/responses/{answers[0]['id']}").status_code == (200 if len(answers) == 1 else 404)
            assert client.post("/v1/completions", json={"prompt": 1.5}).status_code == 400
            assert 'reason="invalid"} 1.0' in client.get("/metrics").text
        assert len(engine.admitted) == 1
        assert sum("ignored an unknown field" in record.message for record in caplog.records) == 1


def test_a_test_sees_what_its_application_makes_for_its_context() -> None:
    for name in ("one", "another"):
        context = replace(make_context(FakeEngine()), model_name=name)
        with TestClient(app_over(context)) as client:
            assert client.post("/v1/completions", json={"model": name, "prompt": "x"}).json()["model"] == name
        assert "text" in vars(context)


def test_an_application_with_keys_is_new() -> None:
    assert app_over(make_context(FakeEngine(), keys=["k"])) is not app_over(make_context(FakeEngine(), keys=["k"]))
