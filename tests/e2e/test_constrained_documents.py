"""Documents that the demo model writes under constraints are valid, at temperature 1 too."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.support.demo import needs_demo
from tests.support.real_server import RealServer
from tests.support.schemas import SCHEMAS

pytestmark = needs_demo

_MOST_TOKENS = 512
_AT_ONCE = 32
_PATIENCE_S = 1800.0
_FEW = ("sentiment", "postal address", "payment intent", "service manifest", "shapes", "agent step")


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    server = RealServer()
    yield server
    server.close()


async def _document(client: httpx.AsyncClient, name: str, seed: int) -> tuple[str, str]:
    """Why a document ended, and its text; one that ended by itself is valid."""
    body = {
        "messages": [{"role": "user", "content": f"Write a {name} as JSON."}],
        "temperature": 1.0,
        "seed": seed,
        "max_tokens": _MOST_TOKENS,
        "response_format": {"type": "json_schema", "json_schema": {"name": "document", "schema": SCHEMAS[name]}},
    }
    answer = await client.post("/v1/chat/completions", json=body, timeout=_PATIENCE_S)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    text: str = choice["message"]["content"]
    if choice["finish_reason"] == "stop":
        validator = jsonschema_rs.validator_for(SCHEMAS[name], validate_formats=True)
        assert not list(validator.iter_errors(json.loads(text))), text
    return choice["finish_reason"], text


async def _documents(server: RealServer, names: tuple[str, ...], each: int) -> list[tuple[str, str]]:
    """So many documents by each of the schemas."""
    turns = asyncio.Semaphore(_AT_ONCE)
    async with server.client() as client:

        async def document(name: str, seed: int) -> tuple[str, str]:
            async with turns:
                return await _document(client, name, seed)

        return await asyncio.gather(*(document(name, seed) for seed in range(each) for name in names))


async def test_documents_are_valid_by_their_schema(server: RealServer) -> None:
    ended = Counter(reason for reason, _ in await _documents(server, _FEW, 2))
    assert ended.keys() <= {"stop", "length"}
    assert ended["stop"] > ended["length"]


@pytest.mark.slow
@pytest.mark.timeout(_PATIENCE_S)
async def test_nearly_all_of_five_hundred_documents_end_by_themselves(server: RealServer) -> None:
    ended = Counter(reason for reason, _ in await _documents(server, tuple(SCHEMAS), 10))
    print(f"of {ended.total()} documents of at most {_MOST_TOKENS} tokens: {dict(ended)}")
    assert ended.keys() <= {"stop", "length"}
    assert ended["stop"] >= 0.9 * ended.total()


def _complete(server: RealServer, **fields: Any) -> list[str]:
    answer = server.complete("Is water wet? ", 40, ignore_eos=False, **fields)
    assert answer.status_code == 200, answer.text
    assert {choice["finish_reason"] for choice in answer.json()["choices"]} == {"stop"}
    return [choice["text"] for choice in answer.json()["choices"]]


def test_each_choice_is_one_of_those_that_there_are(server: RealServer) -> None:
    texts = _complete(server, structured_outputs={"choice": ["yes", "no"]}, n=8, temperature=1, seed=1)
    assert len(texts) == 8
    assert set(texts) <= {"yes", "no"}


def test_a_constrained_answer_is_the_same_alone_and_beside_others(server: RealServer) -> None:
    fields = {"regex": "[a-z]{4,8}, [0-9]{2}", "temperature": 1, "seed": 3}
    (alone,) = _complete(server, **fields)
    assert _complete(server, **fields, n=4)[0] == alone


def test_the_grammar_wins_over_the_least_number_of_tokens(server: RealServer) -> None:
    assert _complete(server, guided_regex="ab", min_tokens=20) == ["ab"]
