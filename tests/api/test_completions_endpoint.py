from dataclasses import replace
from typing import Any

import pytest
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, FakeEngine, make_context
from tests.support.byte_tokenizer import BOS, ByteTokenizer


def complete(client: TestClient, prompt: Any = "ab", **fields: Any) -> Any:
    return client.post("/v1/completions", json={"model": MODEL, "prompt": prompt, **fields})


# Tokens around what is to be filled in.
FILLING = ByteTokenizer(markers={250: "<fim_prefix>", 251: "<fim_suffix>", 252: "<fim_middle>"})


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {}), ("/api/generate", {"model": MODEL, "stream": False})]
)
def test_a_suffix_follows_the_answer_where_the_tokenizer_has_tokens_for_it(
    engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    fields = {"prompt": "ab", "suffix": "cd", **body}
    context = make_context(engine)
    answer = TestClient(app_over(context)).post(path, json=fields)
    assert (answer.status_code, engine.admitted) == (400, [])
    client = TestClient(app_over(replace(context, tokenizer=FILLING)))
    assert client.post(path, json=fields).status_code == 200
    assert engine.admitted[0].prompt == [BOS, 250, *b"ab", 251, *b"cd", 252]
    shown = client.post("/api/show", json={"model": MODEL}).json()
    assert shown["capabilities"] == ["completion", "insert"]


def test_what_is_resumed_is_not_looked_through_for_ever(client: TestClient) -> None:
    stops = [f"{number:1000}" for number in range(32)]
    check_resume_is_refused(client, {"stop": stops, "resume_token_ids": [97] * 140})
    assert complete(client, prompt="ab", stop=stops, resume_token_ids=[97], max_tokens=4).status_code == 200


def check_resume_is_refused(client: TestClient, fields: dict[str, Any]) -> None:
    answer = complete(client, **{"prompt": "ab", "resume_token_ids": [97]} | fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "resume_token_ids"
