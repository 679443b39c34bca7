"""Values that Python's JSON reads and nothing writes again, wherever a body of any surface has data inside."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from numaserve.server.http.body.route import INLINE_BYTES
from numaserve.server.http.fields.json_data import MAX_DEPTH
from tool_cases import WEATHER, Template, thinking_client
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, FakeEngine
from tests.support.error_forms import error_message

USER = {"role": "user", "content": "x"}
# What is replaced in the text of a body: by a value, and by the JSON text of an object that has it.
VALUE, TEXT = "<value>", "<text>"
SCHEMA = {"type": "object", "default": VALUE}
FUNCTION = {"name": "f", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
NAMED = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
TAG = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": SCHEMA}}
FORMAT = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}


def turns(arguments: object) -> list[dict[str, Any]]:
    call = {"function": {"name": "f", "arguments": arguments}}
    return [USER, {"role": "assistant", "tool_calls": [call]}, USER]


USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": VALUE}}]}
CHAT: dict[str, Any] = {"messages": [USER], "max_tokens": 3}
OLLAMA: dict[str, Any] = {"model": MODEL, "messages": [USER], "stream": False}
ITEM = {"type": "function_call", "call_id": "1", "name": "f", "arguments": TEXT}
PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "tools": ("/v1/chat/completions", {**CHAT, "tools": TOOLS}),
    "demanded tools": ("/v1/chat/completions", {**CHAT, "tools": TOOLS, "tool_choice": "required"}),
    "functions": ("/v1/chat/completions", {**CHAT, "functions": [FUNCTION]}),
    "a response format": ("/v1/chat/completions", {**CHAT, "response_format": NAMED}),
    "a structural tag": ("/v1/chat/completions", {**CHAT, "response_format": TAG}),
    "a format and tools": ("/v1/chat/completions", {**CHAT, "tools": TOOLS, "response_format": NAMED}),
    "structured outputs": ("/v1/chat/completions", {**CHAT, "structured_outputs": {"json": SCHEMA}}),
    "arguments of the template": ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"a": VALUE}}),
    "an earlier call": ("/v1/chat/completions", {**CHAT, "messages": turns(TEXT)}),
    "an earlier call to be counted": ("/tokenize", {"messages": turns(TEXT)}),
    "a guided text": ("/v1/completions", {"prompt": "x", "max_tokens": 3, "guided_json": SCHEMA}),
    "tools of a response": ("/v1/responses", {"input": "x", "tools": [{"type": "function", **FUNCTION}]}),
    "a response's format": ("/v1/responses", {"input": "x", "text": FORMAT}),
    "an item": ("/v1/responses", {"input": [ITEM]}),
    "tools of a message": ("/v1/messages", {**CHAT, "tools": [{"name": "f", "input_schema": SCHEMA}]}),
    "a message's format": ("/v1/messages", {**CHAT, "output_config": FORMAT}),
    "an earlier use": ("/v1/messages", {**CHAT, "messages": [USED, USER]}),
    "an earlier use to be counted": ("/v1/messages/count_tokens", {"messages": [USED, USER]}),
    "Ollama's tools": ("/api/chat", {**OLLAMA, "tools": TOOLS}),
    "Ollama's earlier call": ("/api/chat", {**OLLAMA, "messages": turns({"a": VALUE})}),
    "Ollama's format": ("/api/generate", {"model": MODEL, "prompt": "x", "format": SCHEMA}),
    "SGLang's schema": ("/generate", {"text": "x", "sampling_params": {"json_schema": SCHEMA}}),
}
VALUES = {
    "half a character": '"\\ud800"',
    "a name with half a character": '{"\\ud800": 1}',
    "NaN": "NaN",
    "an infinity": "-Infinity",
    "a number that becomes one": "1e999",
    "thousands of digits": "9" * 5000,
    "depth": "[" * 2 * MAX_DEPTH + "]" * 2 * MAX_DEPTH,
    "depth that the decoder just takes": "[" * 940 + "]" * 940,
}
LONG = pytest.mark.parametrize("is_long", [False, True])  # another process decodes long bodies


@pytest.fixture(scope="module")
def one_engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def one_template() -> Template:
    return Template()


@pytest.fixture(scope="module")
def one_client(one_engine: FakeEngine, one_template: Template) -> Iterator[TestClient]:
    """A client for all: each new one starts a process for long bodies."""
    with thinking_client(one_engine, one_template) as client:
        yield client


def post(client: TestClient, place: str, value: str, is_long: bool) -> Any:
    path, body = PLACES[place]
    text = json.dumps(body).replace(f'"{VALUE}"', value).replace(f'"{TEXT}"', json.dumps(f'{{"a": {value}}}'))
    content = text + " " * INLINE_BYTES * is_long
    return client.post(path, content=content, headers={"Content-Type": "application/json"})


# What stands in a text was written by a model, and is taken as it is.
TEXTS = [place for place, (_, body) in PLACES.items() if json.dumps(TEXT) in json.dumps(body)]


@pytest.mark.parametrize("place", TEXTS)
@pytest.mark.parametrize("value", VALUES)
@LONG
def test_what_cannot_be_written_again_is_taken_as_a_text(
    one_client: TestClient, one_template: Template, place: str, value: str, is_long: bool
) -> None:
    answer = post(one_client, place, VALUES[value], is_long)
    assert answer.status_code == 200, answer.text
    (call,) = next(message["tool_calls"] for message in one_template.messages if "tool_calls" in message)
    assert call["function"]["arguments"] == {"arguments": f'{{"a": {VALUES[value]}}}'}


@pytest.mark.parametrize("place", [place for place in PLACES if place not in TEXTS])
@pytest.mark.parametrize("value", VALUES)
@LONG
def test_what_cannot_be_written_again_is_the_client_s_error(
    one_client: TestClient, one_engine: FakeEngine, place: str, value: str, is_long: bool
) -> None:
    admitted = len(one_engine.admitted)
    answer = post(one_client, place, VALUES[value], is_long)
    assert answer.status_code == 400, answer.text
    error_message(answer)
    assert len(one_engine.admitted) == admitted


@pytest.mark.parametrize("place", [place for place in PLACES if place != "arguments of the template"])
@LONG
def test_numbers_of_more_than_64_bits_are_taken(one_client: TestClient, place: str, is_long: bool) -> None:
    answer = post(one_client, place, str(2**70), is_long)
    assert answer.status_code == 200, answer.text


ARGUMENTS = {**VALUES, "more than 64 bits": str(2**70), "no end": "[" * 5000}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_model_may_write_any_of_them(thinker: TestClient, engine: FakeEngine, argument: str) -> None:
    arguments = f'{{"a": {ARGUMENTS[argument]}}}'
    engine.reply = f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'
    tools = [{"type": "function", "function": WEATHER}]
    chat = {"messages": [USER], "max_tokens": 1000, "tools": tools}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": chat,
        "/v1/responses": {"input": [USER], "tools": [{"type": "function", **WEATHER}]},
        "/v1/messages": {**chat, "tools": [{"name": "weather", "input_schema": WEATHER["parameters"]}]},
        "/api/chat": {"model": MODEL, **chat},
    }
    for path, body in bodies.items():
        for stream in (False, True):
            answer = thinker.post(path, json={**body, "stream": stream})
            assert answer.status_code == 200, answer.text
            assert '"weather"' in answer.text
            assert "server_error" not in answer.text
    kept = thinker.post("/v1/responses", json=bodies["/v1/responses"]).json()["id"]
    assert thinker.post("/v1/responses", json={"input": "x", "previous_response_id": kept}).status_code == 200
