"""Structured text of OpenAI's responses and Anthropic's messages, up to the matchers that the engine gets."""

from typing import Any

import pytest
from whole_answers import TestClient

from tests.support.api_fakes import FakeEngine
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.error_forms import error_message
from tests.support.masks import matches

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50},
}


def post(client: TestClient, path: str, wanted: object) -> Any:
    field = "text" if path == "/v1/responses" else "output_config"
    return client.post(path, json={**BODIES[path], field: {"format": wanted}})


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("wanted", "right", "wrong"),
    [
        ({"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}, '{"n": 1}', '{"n": "x"}'),
        ({"type": "json_object"}, '{"n": "x"}', "1"),
    ],
)
def test_the_engine_gets_matchers_of_the_format(
    client: TestClient, engine: FakeEngine, path: str, wanted: dict[str, Any], right: str, wrong: str
) -> None:
    answer = post(client, path, wanted)
    assert answer.status_code == 200, answer.text
    factory = engine.admitted[-1].matcher
    assert factory is not None
    assert matches(factory(), ByteTokenizer(), right)
    assert not matches(factory(), ByteTokenizer(), wrong)
    if path == "/v1/responses":
        assert answer.json()["text"] == {"format": wanted}


@pytest.mark.parametrize("path", BODIES)
def test_a_schema_that_is_not_strict_is_enforced_as_far_as_it_can_be(
    client: TestClient, engine: FakeEngine, path: str
) -> None:
    several = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    wanted = {"type": "json_schema", "name": "n", "schema": several}
    assert post(client, path, {**wanted, "strict": True}).status_code == 400
    for loose in (wanted, {**wanted, "strict": None}, {**wanted, "strict": False}):
        answer = post(client, path, loose)
        assert answer.status_code == 200, answer.text
        factory = engine.admitted[-1].matcher
        assert factory is not None
        assert matches(factory(), ByteTokenizer(), "[1, 1]")
        assert not matches(factory(), ByteTokenizer(), '["x"]')
        if path == "/v1/responses":
            assert answer.json()["text"] == {"format": loose}


@pytest.mark.parametrize("path", BODIES)
def test_text_is_not_held_to_anything(client: TestClient, engine: FakeEngine, path: str) -> None:
    assert post(client, path, {"type": "text"}).status_code == 200
    assert engine.admitted[-1].matcher is None


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"type": "json_schema"}, "needs a field 'schema' that is an object"),
        ({"type": "x" * 99}, "the type must be"),
        ({}, "the type must be"),
        ({"type": "json_schema", "schema": {"type": "string", "not": {"type": "null"}}, "strict": True}, "not"),
    ],
)
def test_a_format_that_cannot_be_served_is_refused_in_words(
    client: TestClient, path: str, wanted: object, words: str
) -> None:
    answer = post(client, path, wanted)
    assert answer.status_code == 400
    assert words in error_message(answer)
