"""Tools and thoughts of POST /v1/chat/completions, over an engine whose answer is given and comes byte by byte."""

import ctypes
import json
from typing import Any

import pytest
from numaserve.server.scheduler.matcher import MaskState, TokenMatcher
from starlette.testclient import TestClient
from tool_cases import ARGUMENTS, CALL, CLOCK, SECOND, USER, WEATHER, PlainTemplate, Template, thinking_client

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


def streamed(thinker: TestClient, **fields: Any) -> dict[str, Any]:
    """The message and the reason that the deltas of a stream make, as clients put them together."""
    answer = thinker.post(CHAT, json={"messages": [USER], "stream": True, **fields})
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    reason = None
    for line in answer.text.split("\n\n")[:-2]:
        choice = json.loads(line.removeprefix("data: "))["choices"][0]
        delta, reason = choice["delta"], choice["finish_reason"] or reason
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(message["tool_calls"])
                assert call["type"] == "function"
                message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
            message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return {"message": message, "finish_reason": reason}


def test_a_call_comes_as_a_call_with_an_id(thinker: TestClient) -> None:
    choice = ask(thinker, tools=TOOLS)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS


@pytest.mark.parametrize(
    "reply",
    [CALL, f"I look.\n{CALL}", f"{CALL}\n{SECOND}", f"<think>\nhm\n</think>\n\nSo:{CALL}", "<think>\nhm", "no call"],
)
def test_the_deltas_of_a_stream_are_the_whole_answer(thinker: TestClient, engine: FakeEngine, reply: str) -> None:
    engine.reply = reply
    whole, stream = ask(thinker, tools=TOOLS), streamed(thinker, tools=TOOLS)
    assert stream["finish_reason"] == whole["finish_reason"]
    message = whole["message"]
    assert stream["message"] == {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "tool_calls": [call["function"] for call in message.get("tool_calls", ())],
    }


def test_text_that_looks_like_a_call_is_text_without_tools(thinker: TestClient) -> None:
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = ask(thinker, **fields)
        assert choice["message"]["content"] == CALL
        assert choice["finish_reason"] == "stop"


def test_only_the_first_of_several_calls_is_made_where_they_must_not_be_parallel(
    thinker: TestClient, engine: FakeEngine
) -> None:
    engine.reply = f"{CALL}\n{SECOND}"
    assert len(ask(thinker, tools=TOOLS)["message"]["tool_calls"]) == 2
    assert len(ask(thinker, tools=TOOLS, parallel_tool_calls=False)["message"]["tool_calls"]) == 1


def test_older_functions_are_answered_in_the_older_shape(thinker: TestClient) -> None:
    choice = ask(thinker, functions=[WEATHER, CLOCK])
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"]["name"] == "weather"
    assert "tool_calls" not in choice["message"]


def test_the_template_gets_the_tools(thinker: TestClient, template: Template) -> None:
    ask(thinker, tools=TOOLS)
    assert [tool["function"]["name"] for tool in template.tools] == ["weather", "clock"]
    assert template.tools[0] == {"type": "function", "function": WEATHER}
    ask(thinker, tools=TOOLS, tool_choice="none")
    assert template.tools == []


@pytest.mark.parametrize("template", [PlainTemplate()])
def test_a_template_without_tools_gets_a_conversation_that_tells_of_them(
    thinker: TestClient, template: Template
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    turns = [USER, {"role": "assistant", "tool_calls": [call] * 2}, *[{"role": "tool", "content": "noon"}] * 2]
    ask(thinker, messages=turns, tools=TOOLS)
    assert template.tools == []
    system, user, assistant, result = template.messages
    assert system["role"] == "system"
    assert '"name": "weather"' in str(system["content"])
    assert user == USER
    assert str(assistant["content"]).count('"name": "clock"') == 2
    assert result["role"] == "user"
    assert str(result["content"]).count("noon") == 2


def test_calls_are_told_of_in_the_format_that_the_operator_names(engine: FakeEngine) -> None:
    engine.reply = '{"name": "weather", "parameters": {"city": "Oslo"}}'
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    turns = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "noon"}]
    template = PlainTemplate()
    with thinking_client(engine, template, "llama3_json") as thinker:
        made = ask(thinker, messages=turns, tools=TOOLS)["message"]["tool_calls"]
    assert [each["function"] for each in made] == [{"name": "weather", "arguments": '{"city": "Oslo"}'}]
    system, _, assistant, _ = (str(message["content"]) for message in template.messages)
    assert system.endswith('{"name": "NAME", "parameters": {"ARGUMENT": "VALUE"}}')
    assert assistant == '{"name": "clock", "parameters": {}}'


def test_the_thought_is_told_apart_and_counted(thinker: TestClient, engine: FakeEngine) -> None:
    engine.reply = "<think>\nLet me see.\n</think>\n\nYes."
    answer = thinker.post(CHAT, json={"messages": [USER]}).json()
    message = answer["choices"][0]["message"]
    assert message["content"] == "Yes."
    assert message["reasoning_content"] == message["reasoning"] == "Let me see."
    tokens = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert len("Let me see.") <= tokens < len("<think>\nLet me see.\n</think>\n\n") + 2


def test_a_call_behind_a_thought_is_not_counted_as_one(thinker: TestClient, engine: FakeEngine) -> None:
    thought = "Let me see.\n</think>"
    engine.reply = f"<think>\n{thought}\n\n{CALL}"
    usage = thinker.post(CHAT, json={"messages": [USER], "tools": TOOLS}).json()["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len(thought)


def test_the_thought_may_be_left_out_or_left_in(thinker: TestClient, engine: FakeEngine) -> None:
    engine.reply = "<think>hm</think>Yes."
    assert ask(thinker, include_reasoning=False)["message"] == {"role": "assistant", "content": "Yes.", "refusal": None}
    assert ask(thinker, separate_reasoning=False)["message"]["content"] == engine.reply


def test_a_thought_comes_back_to_the_template(thinker: TestClient, template: Template) -> None:
    ask(thinker, messages=[USER, {"role": "assistant", "content": "a", "reasoning_content": "hm"}, USER])
    assert template.messages[1]["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    ("effort", "arguments"),
    [("high", {"reasoning_effort": "high"}), ("none", {"enable_thinking": False, "thinking": False})],
)
def test_the_effort_is_an_argument_of_the_template(
    thinker: TestClient, template: Template, effort: str, arguments: dict[str, object]
) -> None:
    ask(thinker, reasoning_effort=effort, chat_template_kwargs={"more": 1})
    assert template.arguments == {**arguments, "more": 1}


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


def test_without_tools_there_is_no_constraint(thinker: TestClient, engine: FakeEngine) -> None:
    ask(thinker)
    ask(thinker, tools=TOOLS, tool_choice="none")
    assert [request.matcher for request in engine.admitted] == [None, None]


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


def test_tools_of_other_types_are_left_out_and_named(thinker: TestClient, template: Template) -> None:
    patch = {"type": "custom", "custom": {"name": "patch", "format": {"type": "text"}}}
    answer = thinker.post(CHAT, json={"messages": [USER], "tools": [patch, *TOOLS]})
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Numaserve-Ignored"] == "1, tools.custom"
    assert [tool["function"]["name"] for tool in template.tools] == ["weather", "clock"]
    refused = thinker.post(CHAT, json={"messages": [USER], "tools": [{"type": "functoin"}]})
    assert refused.json()["error"]["message"] == "Unknown field: tools[0].type; did you mean 'function'?"


@pytest.mark.parametrize("arguments", ['{"city": "Par', "[1]", "no"])
def test_a_call_that_was_cut_off_is_taken_back(thinker: TestClient, template: Template, arguments: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": "no", "annotations": [{"a": 1}]}
    ask(thinker, messages=[USER, turn, {"role": "tool", "tool_call_id": "1", "content": "?"}])
    (told,) = template.messages[1]["tool_calls"]  # type: ignore[misc]
    assert told["function"]["arguments"] == {"arguments": arguments}
