"""How long a request may take is its own affair, and the operator's."""

import json
from dataclasses import replace
from typing import Any

import pytest
from numaserve.server.engine.types import RequestTimedOut
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, FakeEngine, make_context

COMPLETION = ("/v1/completions", {"model": MODEL, "prompt": "hi"})
MESSAGE = ("/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]})
OLLAMA = ("/api/generate", {"model": MODEL, "prompt": "hi", "stream": False})


def post(engine: FakeEngine, what: tuple[str, dict[str, Any]], *, longest: float | None = None, **headers: str) -> Any:
    context = make_context(engine)
    context = replace(context, limits=replace(context.limits, request_timeout=longest))
    with TestClient(app_over(context), base_url="http://localhost") as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.post(what[0], json=what[1], headers=named)


def test_a_request_without_a_limit_has_none() -> None:
    engine = FakeEngine()
    assert post(engine, COMPLETION).status_code == 200
    assert engine.admitted[0].timeout_s is None


@pytest.mark.parametrize(("longest", "given", "limit"), [(None, "30", 30), (20.0, "30", 20), (20.0, "0.5", 0.5)])
def test_the_shorter_of_the_header_and_the_option_counts_from_the_arrival_on(
    longest: float | None, given: str, limit: float
) -> None:
    engine = FakeEngine()
    post(engine, COMPLETION, longest=longest, x_request_timeout=given)
    left = engine.admitted[0].timeout_s
    assert left is not None and 0 < left < limit


def test_the_option_counts_alone() -> None:
    engine = FakeEngine()
    post(engine, COMPLETION, longest=1000.0)
    left = engine.admitted[0].timeout_s
    assert left is not None and left < 1000.0


def test_a_request_whose_time_has_passed_by_its_admission_is_not_admitted() -> None:
    engine = FakeEngine()
    answer = post(engine, COMPLETION, x_request_timeout="0.000000001")
    assert (answer.status_code, engine.admitted) == (504, [])


@pytest.mark.parametrize("given", ["0", "-1", "soon", "", "nan", "1e3", "99999999", "1."])
def test_a_time_that_is_no_number_of_seconds_is_refused(given: str) -> None:
    engine = FakeEngine()
    answer = post(engine, COMPLETION, x_request_timeout=given)
    assert (answer.status_code, engine.admitted) == (400, [])
    assert "X-Request-Timeout" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (COMPLETION, {"type": "timeout_error", "code": "deadline_exceeded", "param": None}),
        (MESSAGE, {"type": "timeout_error"}),
    ],
)
def test_a_late_request_is_told_in_its_surface_s_form(what: tuple[str, dict[str, Any]], told: dict[str, Any]) -> None:
    engine = FakeEngine(fail_after=1, failure=RequestTimedOut())
    answer = post(engine, what)
    assert answer.status_code == 504
    assert answer.json()["error"] == {"message": str(RequestTimedOut()), **told}


def test_a_late_request_is_told_as_ollama_tells() -> None:
    answer = post(FakeEngine(fail_after=1, failure=RequestTimedOut()), OLLAMA)
    assert (answer.status_code, answer.json()) == (504, {"error": str(RequestTimedOut())})


def test_a_stream_that_has_begun_ends_with_the_error_as_an_event() -> None:
    path, body = COMPLETION
    answer = post(FakeEngine(fail_after=2, failure=RequestTimedOut()), (path, body | {"stream": True}))
    assert answer.status_code == 200
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert json.loads(events[-2])["error"]["code"] == "deadline_exceeded"
