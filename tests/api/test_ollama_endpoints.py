"""Ollama's shapes: /api/chat, /api/generate, /api/tags, /api/show, /api/version and /api/ps."""

from typing import Any

import pytest
from httpx import Response
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, REPLY, FakeEngine
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.masks import matches

CHAT, GENERATE = "/api/chat", "/api/generate"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    GENERATE: {"model": MODEL, "prompt": "hi"},
}
COUNTS = {"total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"}
both = pytest.mark.parametrize("path", BODIES)


def ask(client: TestClient, path: str, **fields: Any) -> Response:
    return client.post(path, json=BODIES[path] | {"stream": False} | fields)


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["message"]["content"] if "message" in answer else answer["response"])


@both
def test_a_whole_answer_has_text_counts_and_durations(client: TestClient, engine: FakeEngine, path: str) -> None:
    answer = ask(client, path).json()
    assert text_of(answer) == REPLY
    assert (answer["model"], answer["done"], answer["done_reason"]) == (MODEL, True, "stop")
    assert answer["created_at"].endswith("Z")
    assert answer["prompt_eval_count"] == len(engine.admitted[0].prompt)
    assert answer["eval_count"] == len(REPLY.encode()) + 1
    durations = {name: answer[name] for name in COUNTS if name.endswith("duration")}
    assert all(isinstance(value, int) and value >= 0 for value in durations.values())
    assert answer["total_duration"] == pytest.approx(sum(durations.values()) - answer["total_duration"], abs=10)
    assert "logprobs" not in answer


@both
@pytest.mark.parametrize(
    ("given", "fits", "does_not"), [("json", '{"a": 1}', "1"), ({"type": "integer"}, "12", "{}"), ("", None, None)]
)
def test_a_format_is_what_the_answer_must_match(
    shared_client: TestClient, shared_engine: FakeEngine, path: str, given: object, fits: str | None, does_not: str
) -> None:
    shared_engine.admitted.clear()
    assert ask(shared_client, path, format=given).status_code == 200
    [request] = shared_engine.admitted
    if fits is None:
        assert request.matcher is None
        return
    assert request.matcher is not None
    assert matches(request.matcher(), ByteTokenizer(), fits)
    assert not matches(request.matcher(), ByteTokenizer(), does_not)
