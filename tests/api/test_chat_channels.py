"""Constrained answers of a model that writes its thoughts, calls and answers as messages in channels."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from numaserve.server.answers.reasoning.formats import reasoning_formats
from numaserve.server.answers.tools.formats import tool_formats
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import CONTEXT, FakeEngine, make_context
from tests.support.masks import matches

CHAT = "/v1/chat/completions"
YES = {"type": "json_schema", "json_schema": {"name": "yes", "schema": {"const": "yes"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
ANSWER = '<|channel|>final<|message|>"yes"'
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(reply=THOUGHT + ANSWER)


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[TestClient]:
    context = replace(
        make_context(engine), tool_format=tool_formats()["harmony"], reasoning_format=reasoning_formats()["gpt_oss"]
    )
    limits = replace(context.limits, context_length=8 * CONTEXT)
    with TestClient(app_over(replace(context, limits=limits)), base_url="http://127.0.0.1") as client:
        yield client


def ask(client: TestClient, **fields: Any) -> dict[str, Any]:
    answer = client.post(CHAT, json={"messages": [{"role": "user", "content": "x"}], **fields})
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


@pytest.mark.parametrize("tools", [{}, {"tools": TOOLS}], ids=["without-tools", "with-tools"])
@pytest.mark.parametrize(
    "asked", [{"response_format": YES}, {"guided_regex": '"yes"'}, {"guided_choice": ['"yes"', '"oui"']}], ids=str
)
def test_the_text_of_the_last_message_is_what_matches(
    client: TestClient, engine: FakeEngine, tools: dict[str, Any], asked: dict[str, Any]
) -> None:
    message = ask(client, **tools, **asked)
    assert (message["content"], message["reasoning_content"]) == ('"yes"', "Hm.")
    make = engine.admitted[-1].matcher
    assert make is not None
    tokenizer = make_context(engine).tokenizer
    assert matches(make(), tokenizer, ANSWER)
    assert matches(make(), tokenizer, THOUGHT + ANSWER)
    assert not matches(make(), tokenizer, '"yes"')
    assert not matches(make(), tokenizer, ANSWER.replace("yes", "no"))
    assert matches(make(), tokenizer, THOUGHT + CALL) == bool(tools)
