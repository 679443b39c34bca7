import json
import logging
from typing import Any

import pytest
from numaserve.server.engine.types import GenerationFailed
from numaserve.server.http.access_log import JsonFormatter
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, REPLY, FakeEngine, make_context

SECRET = "the secret prompt"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": SECRET}]}


def lines(caplog: pytest.LogCaptureFixture) -> list[Any]:
    formatter = JsonFormatter()
    return [json.loads(formatter.format(r)) for r in caplog.records if r.name == "numaserve.request"]


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="numaserve")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_leaves_one_line_without_its_prompt(
    client: TestClient, engine: FakeEngine, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    engine.cached_tokens = 3
    client.post("/v1/chat/completions", json={**BODY, "stream": stream}, headers={"X-Request-Id": "r1"})
    (line,) = lines(caplog)
    assert line["request_id"] == "r1"
    assert line["route"] == "/v1/chat/completions"
    assert line["status"] == 200
    assert line["prompt_tokens"] == len(SECRET) + 7
    assert line["cached_tokens"] == 3
    assert line["output_tokens"] == len(REPLY.encode()) + 1
    assert line["finish_reason"] == "stop"
    assert 0 <= line["ttft"] <= line["duration"]
    assert SECRET not in caplog.text
    assert SECRET not in json.dumps(line)


def test_prompts_are_logged_when_the_operator_asks(engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    with TestClient(app_over(make_context(engine, log_prompts=True))) as client:
        client.post("/v1/chat/completions", json=BODY)
        client.post("/v1/completions", json={"prompt": "x\n{}"})
    assert [line["prompt"] for line in lines(caplog)] == [BODY["messages"], ["x\n{}"]]


def test_a_failed_stream_says_so(client: TestClient, engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    engine.fail_after = 2
    engine.failure = GenerationFailed("A worker died.")
    client.post("/v1/chat/completions", json={**BODY, "stream": True})
    assert lines(caplog)[0]["finish_reason"] == "error"


def test_an_invalid_request_leaves_a_line_without_its_body(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.post("/v1/chat/completions", json={**BODY, "temperature": SECRET})
    (line,) = lines(caplog)
    assert line["status"] == 400
    assert "prompt_tokens" not in line
    assert SECRET not in caplog.text


def test_an_unknown_path_is_not_copied_into_the_log(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    client.get("/%0d%0aFAKE%20LINE")
    (line,) = lines(caplog)
    assert line["route"] == "unmatched"
    assert line["level"] == "info"


def test_probes_are_logged_at_debug_only(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    client.get("/health")
    assert lines(caplog)[0]["level"] == "debug"


def test_a_line_break_in_a_value_cannot_forge_a_line() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "a\nb", None, None)
    record.fields = {"request_id": 'c\r\n{"level":"info"}\u2028'}
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == "a\nb"


def test_an_exception_stays_on_its_line() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    line = JsonFormatter().format(logging.LogRecord("x", logging.ERROR, "", 0, "failed", None, info))
    assert len(line.splitlines()) == 1
    assert "ValueError: first\nsecond" in json.loads(line)["exception"]
