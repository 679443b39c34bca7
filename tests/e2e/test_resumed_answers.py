"""An answer that goes on from tokens of another server ends as that server's would have, to the last bit."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.demo import needs_demo
from tests.support.real_server import PATIENCE_S, RealServer

pytestmark = needs_demo

MESSAGES = [{"role": "user", "content": "Tell a story about a cat and a dog, with dates."}]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 1.2, "top_p": 0.9, "seed": 11},
    "penalties": {"temperature": 0.8, "seed": 5, "frequency_penalty": 0.7, "repetition_penalty": 1.3},
    "least tokens": {"temperature": 0, "min_tokens": 30, "stop": ["the", ". "]},
    "constrained": {"temperature": 0.9, "seed": 3, "structured_outputs": {"regex": "[a-z ]{20,60}[.]"}},
}


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    with RealServer("--tp", "1", "--kv-cache-gib", "0.1", "--context-length", "512") as server:
        yield server


def whole(server: RealServer, body: dict[str, Any]) -> Any:
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(server: RealServer, body: dict[str, Any]) -> list[Any]:
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body | {"stream": True}, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n")[:-2]]


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_goes_on_as_the_server_that_began_it_would_have(server: RealServer, way: str) -> None:
    body = {"messages": MESSAGES, "max_tokens": 40, "return_token_ids": True, **WAYS[way]}
    expected = whole(server, body)
    tokens = expected["choices"][0]["token_ids"]
    assert len(tokens) > 8
    for begun in (1, len(tokens) // 2, len(tokens) - 1):
        answer = whole(server, body | {"resume_token_ids": tokens[:begun]})
        assert answer["choices"] == expected["choices"]
        assert answer["usage"]["completion_tokens"] == len(tokens)


def test_a_stream_that_goes_on_sends_what_was_not_sent_before(server: RealServer) -> None:
    body = {"messages": MESSAGES, "max_tokens": 24, "return_token_ids": True, **WAYS["drawn"]}
    choices = [event["choices"][0] for event in events(server, body)]
    for sent in range(2, len(choices) - 1, 5):
        tokens = [token for choice in choices[:sent] for token in choice.get("token_ids", ())]
        rest = [event["choices"][0] for event in events(server, body | {"resume_token_ids": tokens})]
        assert rest == choices[sent:]


def test_tokens_that_end_the_answer_end_it_at_once(server: RealServer) -> None:
    body = {"messages": MESSAGES, "max_tokens": 40, "return_token_ids": True, "temperature": 0}
    body |= {"stop": [whole(server, body)["choices"][0]["message"]["content"][30:40]]}
    expected = whole(server, body)["choices"]
    assert expected[0]["finish_reason"] == "stop"
    more = body | {"resume_token_ids": [*expected[0]["token_ids"], 5, 6]}
    assert whole(server, more)["choices"] == expected
    assert events(server, more)[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"resume_token_ids": [5] * 8}, "leaves nothing to generate"),
        ({"resume_token_ids": [10**6]}, "token ids are below"),
        ({"resume_token_ids": [5], "n": 2}, "requires 'n': 1"),
        ({"resume_token_ids": [5], "logprobs": True}, "no log-probabilities"),
        ({"resume_token_ids": [5], "prompt_logprobs": 1}, "no log-probabilities"),
    ],
)
def test_what_cannot_be_resumed_is_refused(server: RealServer, fields: dict[str, Any], says: str) -> None:
    body = {"messages": MESSAGES, "max_tokens": 8, **fields}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "resume_token_ids"
