"""Tools and thoughts of POST /v1/chat/completions, over an engine whose answer is given and comes byte by byte."""

import ctypes
from typing import Any

import pytest
from numaserve.server.scheduler.matcher import MaskState, TokenMatcher
from tool_cases import CALL, CLOCK, USER, WEATHER, Template, thinking_client
from whole_answers import TestClient

from tests.support.api_fakes import FakeEngine

CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": each} for each in (WEATHER, CLOCK)]
DEEP: dict[str, Any] = {}
for _ in range(110):
    DEEP = {"items": DEEP}


def ask(thinker: TestClient, **fields: Any) -> dict[str, Any]:
    answer = thinker.post(CHAT, json={"messages": [USER], **fields})
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def test_calls_are_told_of_in_the_format_that_the_operator_names(engine: FakeEngine) -> None:
    engine.reply = '{"name": "weather", "parameters": {"city": "Oslo"}}'
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    turns = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "noon"}]
    template = Template("messages")
    with thinking_client(engine, template, "llama3_json") as thinker:
        made = ask(thinker, messages=turns, tools=TOOLS)["message"]["tool_calls"]
    assert [each["function"] for each in made] == [{"name": "weather", "arguments": '{"city": "Oslo"}'}]
    system, _, assistant, _ = (str(message["content"]) for message in template.messages)
    assert system.endswith('{"name": "NAME", "parameters": {"ARGUMENT": "VALUE"}}')
    assert assistant == '{"name": "clock", "parameters": {}}'


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": TOOLS, "functions": [CLOCK]}, "functions"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}]},
            "tools[0].function.parameters",
        ),
        ({"chat_template_kwargs": {"x": "y" * 257}}, "chat_template_kwargs.x"),
        ({"chat_template_kwargs": {"x": [1]}}, "chat_template_kwargs.x"),
    ],
)
def test_what_cannot_be_meant_is_refused(thinker: TestClient, fields: dict[str, Any], param: str) -> None:
    answer = thinker.post(CHAT, json={"messages": [USER], **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)


def constraint_of(engine: FakeEngine) -> TokenMatcher | None:
    make = engine.admitted[-1].matcher
    return None if make is None else make()


def allows(matcher: TokenMatcher | None, text: bytes) -> bool:
    """Whether an answer may begin with `text`, a token a byte."""
    assert matcher is not None
    bits = (ctypes.c_uint8 * 64)()
    for byte in text:
        state = matcher.write_mask(ctypes.addressof(bits), len(bits))
        if state is MaskState.MASK and not bits[byte // 8] >> byte % 8 & 1:
            return False
        matcher.accept(byte)
    return True


BEGIN = b'<tool_call>\n{"name": "'


def test_a_demanded_call_is_what_the_answer_begins_with(thinker: TestClient, engine: FakeEngine) -> None:
    ask(thinker, tools=TOOLS, tool_choice="required")
    assert allows(constraint_of(engine), BEGIN + b'weather", "arguments": {"city": "')
    assert allows(constraint_of(engine), BEGIN + b'clock", "arguments": {')
    assert not allows(constraint_of(engine), b"No.")
    assert not allows(constraint_of(engine), BEGIN + b"other")
    assert not allows(constraint_of(engine), BEGIN + b'weather", "arguments": {"city": 1')


def test_a_named_tool_is_the_one_that_is_called(thinker: TestClient, engine: FakeEngine) -> None:
    ask(thinker, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "clock"}})
    assert allows(constraint_of(engine), BEGIN + b"clock")
    assert not allows(constraint_of(engine), BEGIN + b"weather")


def test_an_answer_that_may_call_is_free_up_to_a_call(thinker: TestClient, engine: FakeEngine) -> None:
    ask(thinker, tools=TOOLS)
    assert allows(constraint_of(engine), b"No, I do not.")
    assert allows(constraint_of(engine), b"Well. " + BEGIN + b"clock")
    assert not allows(constraint_of(engine), b"Well. " + BEGIN + b"other")


def test_an_answer_may_call_or_be_what_else_is_asked_for(thinker: TestClient, engine: FakeEngine) -> None:
    yes = {"type": "json_schema", "json_schema": {"name": "yes", "schema": {"const": "yes"}}}
    ask(thinker, tools=TOOLS, response_format=yes)
    assert allows(constraint_of(engine), b'"yes"')
    assert allows(constraint_of(engine), BEGIN)
    assert not allows(constraint_of(engine), b"No")


@pytest.mark.parametrize("strict", [False, True])
def test_a_schema_without_a_grammar_is_an_error_only_where_it_was_to_be_met(
    thinker: TestClient, engine: FakeEngine, strict: bool
) -> None:
    function = {"name": "f", "parameters": {"$ref": "https://example.com/schema"}, "strict": strict}
    fields = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    answer = thinker.post(CHAT, json={"messages": [USER], **fields})
    assert answer.status_code == (400 if strict else 200)
    if strict:
        assert answer.json()["error"]["param"] == "tools"
        assert "$ref" in answer.json()["error"]["message"]
    else:
        assert allows(constraint_of(engine), BEGIN + b'f", "arguments": {"any": [')


def test_a_named_tool_is_called_once(thinker: TestClient, engine: FakeEngine) -> None:
    engine.reply = f"{CALL}\n{CALL}\n{CALL}"
    chosen = {"type": "function", "function": {"name": "weather"}}
    assert len(ask(thinker, tools=TOOLS, tool_choice=chosen)["message"]["tool_calls"]) == 1
    once = BEGIN + b'weather", "arguments": {"city": "x"}}\n</tool_call>'
    assert allows(constraint_of(engine), once)
    assert not allows(constraint_of(engine), once + b"\n<tool_call>")
    assert len(ask(thinker, tools=TOOLS, tool_choice="required")["message"]["tool_calls"]) == 3


def test_allowed_tools_are_the_only_ones_that_are_called_of_those_that_the_model_is_told_of(
    thinker: TestClient, engine: FakeEngine, template: Template
) -> None:
    some = [{"type": "function", "function": {"name": "clock"}}]
    for mode, is_free in (("auto", True), ("required", False)):
        ask(thinker, tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": some}})
        assert len(template.tools) == 2
        assert allows(constraint_of(engine), BEGIN + b"clock")
        assert not allows(constraint_of(engine), BEGIN + b"weather")
        assert allows(constraint_of(engine), b"No.") == is_free
