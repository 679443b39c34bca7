"""What an answer must look like, in the words of each family of clients, up to the matchers that the engine gets."""

import json
from typing import Any

import psutil
import pytest
from numaserve.server.app.application import ApiContext
from whole_answers import TestClient

from tests.support.api_fakes import FakeEngine
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.masks import matches

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {CHAT: {"messages": [{"role": "user", "content": "hi"}]}, TEXT: {"prompt": "hi"}}
_NUMBER = {"type": "integer"}
_TAG = {"structures": [{"begin": "<n>", "schema": _NUMBER, "end": "</n>"}], "triggers": ["<n>"]}
_NEWER_TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<n>",
        "content": {"type": "json_schema", "json_schema": _NUMBER},
        "end": "</n>",
    },
}


def _post(client: TestClient, path: str, fields: dict[str, Any]) -> Any:
    return client.post(path, json={**BODIES[path], **fields})


def _named(schema: object, **more: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}


SERVED: list[tuple[str, object, str, str]] = [
    ("response_format", {"type": "json_object"}, '{"a": 1}', "1"),
    ("response_format", _named(_NUMBER), "12", '"12"'),
    ("response_format", _named(_NUMBER, strict=True, description="a number"), "12", "{}"),
    ("response_format", _named(_NUMBER, strict=False), "12", "{}"),
    ("response_format", _named({"type": "string", "format": "regex"}, strict=False), '"("', "1"),
    ("response_format", _named({"type": "array", "uniqueItems": True, "items": _NUMBER}), "[12, 12]", '["x"]'),
    ("response_format", _named({"type": "array", "maxItems": 1, "not": {}}, strict=None), "[]", "[1, 2]"),
    ("response_format", _named({"oneOf": [_NUMBER, {"minimum": 2}]}, strict=False), "12", "x"),
    ("response_format", {"type": "structural_tag", **_TAG}, "a <n>1</n>", "a <n>b"),
    ("response_format", _NEWER_TAG, "<n>1</n>", "a <n>1</n>"),
    ("structured_outputs", {"json": _NUMBER}, "12", "{}"),
    ("structured_outputs", {"json": json.dumps(_NUMBER), "regex": None}, "12", "{}"),
    ("structured_outputs", {"regex": "[ab]+"}, "ab", "abc"),
    ("structured_outputs", {"choice": ["yes", "no"], "disable_any_whitespace": False}, "no", "none"),
    ("structured_outputs", {"grammar": 'start: "a"+'}, "aa", "b"),
    ("structured_outputs", {"structural_tag": json.dumps(_NEWER_TAG)}, "<n>1</n>", "1"),
    ("structured_outputs", {"json_object": True, "json": None}, "{}", "1"),
    ("guided_json", _NUMBER, "12", "{}"),
    ("guided_json", json.dumps(_NUMBER), "12", "{}"),
    ("guided_regex", "[ab]+", "ab", "abc"),
    ("guided_choice", ["yes", "no"], "no", "none"),
    ("guided_grammar", 'root ::= "a"+', "aa", "b"),
    ("json_schema", json.dumps(_NUMBER), "12", "{}"),
    ("json_schema", _NUMBER, "12", "{}"),
    ("regex", "[ab]+", "ab", "abc"),
    ("ebnf", 'root ::= "a"+', "aa", "b"),
    ("structural_tag", json.dumps(_TAG), "a <n>1</n>", "a <n>b"),
    ("structural_tag", _NEWER_TAG, "<n>1</n>", "1"),
]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("name", "value", "right", "wrong"), SERVED)
def test_the_engine_gets_matchers_of_what_was_asked_for(
    renewed_client: TestClient, renewed_engine: FakeEngine, path: str, name: str, value: object, right: str, wrong: str
) -> None:
    answer = _post(renewed_client, path, {name: value, "n": 2})
    assert answer.status_code == 200
    assert len(renewed_engine.admitted) == 2
    for request in renewed_engine.admitted:
        assert request.matcher is not None
        assert matches(request.matcher(), ByteTokenizer(), right)
        assert not matches(request.matcher(), ByteTokenizer(), wrong)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"response_format": None, "structured_outputs": None, "guided_json": None, "regex": None},
    ],
)
def test_a_request_without_a_constraint_has_no_matcher(
    context: ApiContext, path: str, fields: dict[str, object], renewed_client: TestClient, renewed_engine: FakeEngine
) -> None:
    before = psutil.Process().children()
    assert _post(renewed_client, path, fields).status_code == 200
    (request,) = renewed_engine.admitted
    assert request.matcher is None
    assert psutil.Process().children() == before


REFUSED: list[tuple[str, object, str]] = [
    ("response_format", {"type": "yaml"}, "json_object"),
    ("response_format", "json_object", "type"),
    ("response_format", {}, "type"),
    ("response_format", {"type": "json_schema"}, "schema"),
    ("response_format", _named([]), "schema"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "n"}}, "schema"),
    ("response_format", _named({"not": {}}, strict=True), "not"),
    ("response_format", _named({"properties": {"a": {"uniqueItems": True}}}, strict=True), "uniqueItems"),
    ("response_format", _named({"type": "string", "format": "regex"}, strict=True), "format"),
    ("response_format", _named({"$ref": "http://127.0.0.1:1/"}), "$ref"),
    ("response_format", _named({"$ref": "http://127.0.0.1:1/"}, strict=False), "$ref"),
    ("response_format", _named({"x-guidance": 1}, strict=False), "x-guidance"),
    ("structured_outputs", {}, "exactly one"),
    ("structured_outputs", [], "object"),
    ("structured_outputs", {"json": _NUMBER, "regex": "a"}, "exactly one"),
    ("structured_outputs", {"jason": _NUMBER}, "jason"),
    ("structured_outputs", {"json": _NUMBER, "whitespace_pattern": " "}, "whitespace_pattern"),
    ("structured_outputs", {"regex": 1}, "string"),
    ("structured_outputs", {"json_object": "yes"}, "true or false"),
    ("structured_outputs", {"choice": []}, "at least one"),
    ("guided_json", [1], "object"),
    ("guided_json", "{", "JSON"),
    ("guided_regex", "(a", "unclosed group"),
    ("guided_regex", ["a"], "string"),
    ("guided_regex", "a" * 600_000, "longer than"),
    ("guided_choice", ["a", 1], "list"),
    ("guided_grammar", "what is this", "Lark"),
    ("json_schema", {"not": {}}, "not"),
    ("regex", "\ud800", "surrogate"),
    ("ebnf", "root ::= x", "x"),
    ("structural_tag", {"format": {}}, "structures"),
    ("structural_tag", {"type": "structural_tag", "format": {"type": "qwen_xml_parameter"}}, "qwen_xml_parameter"),
]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("name", "value", "said"), REFUSED)
def test_a_constraint_that_cannot_be_served_is_refused_with_field_and_reason(
    renewed_client: TestClient, renewed_engine: FakeEngine, path: str, name: str, value: object, said: str
) -> None:
    content = json.dumps({**BODIES[path], name: value})
    answer = renewed_client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == name
    assert name in error["message"]
    assert said in error["message"]
    assert renewed_engine.admitted == []


@pytest.mark.parametrize("path", BODIES)
def test_two_constraints_are_refused(renewed_client: TestClient, renewed_engine: FakeEngine, path: str) -> None:
    answer = _post(renewed_client, path, {"response_format": {"type": "json_object"}, "regex": "a"})
    assert answer.status_code == 400
    assert "'regex' and 'response_format'" in answer.json()["error"]["message"]
    assert renewed_engine.admitted == []


@pytest.mark.parametrize("path", BODIES)
def test_a_constraint_beside_the_format_of_text_is_served(
    renewed_client: TestClient, renewed_engine: FakeEngine, path: str
) -> None:
    assert _post(renewed_client, path, {"response_format": {"type": "text"}, "regex": "a"}).status_code == 200
    assert renewed_engine.admitted[0].matcher is not None


def test_a_long_schema_is_decoded_elsewhere_and_served(renewed_client: TestClient, renewed_engine: FakeEngine) -> None:
    schema = {"description": "x" * 300_000, "enum": ["ü", 1.5]}
    assert _post(renewed_client, CHAT, {"response_format": _named(schema)}).status_code == 200
    matcher = renewed_engine.admitted[0].matcher
    assert matcher is not None
    assert matches(matcher(), ByteTokenizer(), '"ü"')


def test_a_deep_schema_is_refused(renewed_client: TestClient, renewed_engine: FakeEngine) -> None:
    content = '{"messages": [{"role": "user", "content": "hi"}], "guided_json": %s}'
    for depth in (101, 900, 30_000):
        nested = '{"items":' * depth + "{}" + "}" * depth
        answer = renewed_client.post(CHAT, content=content % nested, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
    assert renewed_engine.admitted == []
