"""A text on which the model's tokenizer fails costs its own request, and nobody else's."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from numaserve.server.app.application import ApiContext
from numaserve.server.http.access_log import JsonFormatter
from numaserve.server.tokenizer.failures import while_serving
from numaserve.server.tokenizer.types import TextBeyondLimits, TokenizerUnavailable
from shared_apps import app_over
from tokenizers import Regex, Tokenizer, models, normalizers
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, FakeEngine, make_context, outcomes
from tests.support.byte_tokenizer import ByteTokenizer

TRIGGER = "x" * 40 + "!"
TOKENS = list(TRIGGER.encode())
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": TRIGGER}]},
    "/v1/completions": {"model": MODEL, "prompt": TRIGGER},
    "/tokenize": {"prompt": TRIGGER},
    "/detokenize": {"tokens": TOKENS},
}
CASES = [
    *BODIES.items(),
    ("/v1/chat/completions", BODIES["/v1/chat/completions"] | {"stream": True}),
    ("/v1/completions", BODIES["/v1/completions"] | {"stream": True}),
    ("/v1/completions", {"model": MODEL, "prompt": TOKENS, "echo": True}),
    ("/tokenize", {"messages": [{"role": "user", "content": TRIGGER}]}),
]


def joined(messages: list[dict[str, Any]], *_: object, **_options: object) -> str:
    return "".join(str(message["content"]) for message in messages)


@pytest.fixture
def panicky(engine: FakeEngine) -> ApiContext:
    """A context with byte tokens, of a text that the library's own normaliser has seen first."""
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.Replace(Regex("(x+)+$"), "y")
    check = while_serving(backend.encode)
    return replace(make_context(engine), tokenizer=ByteTokenizer(render=joined, check=check))


@pytest.fixture
def panicky_client(panicky: ApiContext) -> Iterator[TestClient]:
    with TestClient(app_over(panicky), raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize(("route", "body"), CASES)
def test_the_answer_is_the_clients_error_and_the_log_says_why(
    route: str, body: dict[str, Any], panicky: ApiContext, panicky_client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="numaserve")
    answer = panicky_client.post(route, json=body, headers={"X-Request-Id": "r7"})
    assert answer.status_code == 400
    message = "The model's tokenizer cannot process this text."
    assert answer.json()["error"] == {
        "message": message,
        "type": "invalid_request_error",
        "param": None,
        "code": "tokenizer_failed",
    }
    formatted = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    (line,) = (line for line in formatted if line["level"] == "error")
    assert (line["logger"], line["request_id"]) == ("numaserve.api", "r7")
    assert "retry-limit" in line["message"]
    assert "exception" not in line
    assert outcomes(panicky, "invalid") == 1


@pytest.mark.parametrize(
    ("error", "status", "code", "message"),
    [
        (
            TextBeyondLimits("the tokenizer ran for more than 2 s of processor time"),
            400,
            "tokenizer_failed",
            "The model's tokenizer cannot process this text: the tokenizer ran for more than 2 s of processor time.",
        ),
        (
            TokenizerUnavailable("It does not answer. Try again."),
            503,
            "tokenizer_unavailable",
            "It does not answer. Try again.",
        ),
    ],
)
@pytest.mark.parametrize(
    ("route", "body"), [case for case in CASES if "echo" not in case[1] and "tokens" not in case[1]]
)
def test_a_text_beyond_limits_is_the_clients_error_and_a_process_that_is_stuck_is_not(
    route: str, body: dict[str, Any], error: Exception, status: int, code: str, message: str, panicky: ApiContext
) -> None:
    def check(text: str) -> None:
        if TRIGGER in text:
            raise error

    context = replace(panicky, tokenizer=ByteTokenizer(render=joined, check=check))
    with TestClient(app_over(context), raise_server_exceptions=False) as client:
        answer = client.post(route, json=body)
        assert client.post("/v1/completions", json={"model": MODEL, "prompt": "dogs"}).status_code == 200
    assert answer.status_code == status
    assert (answer.json()["error"]["code"], answer.json()["error"]["message"]) == (code, message)


def test_other_requests_are_served_as_before(panicky_client: TestClient) -> None:
    for route, body in CASES:
        panicky_client.post(route, json=body)
        other = {"model": MODEL, "prompt": "brown fox"}
        assert panicky_client.post("/v1/completions", json=other).status_code == 200
