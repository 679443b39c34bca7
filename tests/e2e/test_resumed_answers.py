"""An answer that goes on from tokens of another server ends as that server's would have, to the last bit."""

import asyncio
import json
from collections.abc import Iterable, Iterator
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


async def _texts(server: RealServer, bodies: Iterable[dict[str, Any]]) -> list[str]:
    async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.text

    async with server.client() as client:
        return await asyncio.gather(*(ask(client, body) for body in bodies))


def wholes(server: RealServer, *bodies: dict[str, Any]) -> list[Any]:
    """The answers to `bodies`, which are asked for at once."""
    return [json.loads(text) for text in asyncio.run(_texts(server, bodies))]


def choices_of_events(server: RealServer, *bodies: dict[str, Any]) -> list[list[Any]]:
    """The same as streams."""
    texts = asyncio.run(_texts(server, (body | {"stream": True} for body in bodies)))
    payloads = [[line.removeprefix("data: ") for line in text.split("\n\n")[:-2]] for text in texts]
    return [[json.loads(payload)["choices"][0] for payload in each] for each in payloads]


def test_an_answer_goes_on_as_the_server_that_began_it_would_have(server: RealServer) -> None:
    bodies = [{"messages": MESSAGES, "max_tokens": 40, "return_token_ids": True, **way} for way in WAYS.values()]
    resumed, expected = [], []
    for body, answer in zip(bodies, wholes(server, *bodies), strict=True):
        tokens = answer["choices"][0]["token_ids"]
        assert len(tokens) > 8
        for begun in (1, len(tokens) // 2, len(tokens) - 1):
            resumed.append(body | {"resume_token_ids": tokens[:begun]})
            expected.append((answer["choices"], len(tokens)))
    answers = wholes(server, *resumed)
    assert [(each["choices"], each["usage"]["completion_tokens"]) for each in answers] == expected


def test_a_stream_that_goes_on_sends_what_was_not_sent_before(server: RealServer) -> None:
    body = {"messages": MESSAGES, "max_tokens": 24, "return_token_ids": True, **WAYS["drawn"]}
    (choices,) = choices_of_events(server, body)
    sent = range(2, len(choices) - 1, 5)
    begun = [[token for choice in choices[:number] for token in choice.get("token_ids", ())] for number in sent]
    rests = choices_of_events(server, *({**body, "resume_token_ids": tokens} for tokens in begun))
    assert len(rests) > 1
    assert rests == [choices[number:] for number in sent]


def test_tokens_that_end_the_answer_end_it_at_once(server: RealServer) -> None:
    body = {"messages": MESSAGES, "max_tokens": 40, "return_token_ids": True, "temperature": 0}
    (unstopped,) = wholes(server, body)
    body |= {"stop": [unstopped["choices"][0]["message"]["content"][30:40]]}
    expected = wholes(server, body)[0]["choices"]
    assert expected[0]["finish_reason"] == "stop"
    more = body | {"resume_token_ids": [*expected[0]["token_ids"], 5, 6]}
    assert wholes(server, more)[0]["choices"] == expected
    assert choices_of_events(server, more)[0][-1]["finish_reason"] == "stop"


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
