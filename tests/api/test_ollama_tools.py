"""Tools and thoughts of /api/chat and /api/generate, over an engine whose answer is given and comes byte by byte."""

import json
from typing import Any

import pytest
from starlette.testclient import TestClient
from tool_cases import USER, Template

from tests.support.api_fakes import MODEL, FakeEngine

TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": None}}
ARGUMENTS = [{"city": "São Paulo", "days": [1, 2]}, {}]
CALLS = "".join(
    f"<tool_call>\n{json.dumps({'name': 'weather', 'arguments': each}, ensure_ascii=False)}\n</tool_call>"
    for each in ARGUMENTS
)
ENDS = pytest.mark.parametrize("stream", [False, True])


def ask(thinker: TestClient, path: str = "/api/chat", *, stream: bool = False, **fields: Any) -> list[dict[str, Any]]:
    answer = thinker.post(path, json={"model": MODEL, "messages": [USER], "prompt": "x", "stream": stream} | fields)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def said(lines: list[dict[str, Any]], field: str) -> str:
    return "".join(line["message"].get(field, "") for line in lines)


@ENDS
def test_calls_are_whole_and_have_objects_for_arguments(
    thinker: TestClient, engine: FakeEngine, template: Template, stream: bool
) -> None:
    engine.reply = f"I look. {CALLS}"
    lines = ask(thinker, tools=[TOOL], stream=stream)
    calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert [call["function"] for call in calls] == [{"name": "weather", "arguments": each} for each in ARGUMENTS]
    assert len({call["id"] for call in calls}) == len(calls)
    assert said(lines, "content") == "I look."
    assert (lines[-1]["done"], lines[-1]["done_reason"]) == (True, "stop")
    assert template.tools[0]["function"]["name"] == "weather"


@ENDS
def test_arguments_that_are_no_object_come_as_their_text(thinker: TestClient, engine: FakeEngine, stream: bool) -> None:
    engine.reply = '<tool_call>\n{"name": "weather", "arguments": {"city": ]}\n</tool_call>'
    lines = ask(thinker, tools=[TOOL], stream=stream)
    for call in (call for line in lines for call in line["message"].get("tool_calls", ())):
        assert isinstance(call["function"]["arguments"], dict)
    assert "city" in json.dumps(lines)


@ENDS
def test_a_thought_is_apart_from_the_answer(thinker: TestClient, engine: FakeEngine, stream: bool) -> None:
    engine.reply = "<think>\nhm\n</think>\n\nyes"
    lines = ask(thinker, stream=stream)
    assert (said(lines, "thinking"), said(lines, "content")) == ("hm", "yes")
    lines = ask(thinker, "/api/generate", stream=stream)
    assert "".join(line.get("thinking", "") for line in lines) == "hm"
    assert "".join(line["response"] for line in lines) == "yes"


@pytest.mark.parametrize(
    ("think", "arguments"),
    [
        (None, {}),
        (True, {"enable_thinking": True, "thinking": True}),
        (False, {"enable_thinking": False, "thinking": False}),
        ("low", {"reasoning_effort": "low"}),
    ],
)
def test_the_template_is_told_whether_to_think(
    thinker: TestClient, template: Template, think: object, arguments: dict[str, object]
) -> None:
    ask(thinker, think=think)
    assert template.arguments == arguments


def test_an_earlier_answer_goes_back_as_it_came(thinker: TestClient, engine: FakeEngine, template: Template) -> None:
    engine.reply = f"<think>\nhm\n</think>\n\n{CALLS}"
    [answer] = ask(thinker, tools=[TOOL])
    result = {"role": "tool", "content": "wet", "tool_name": "weather"}
    ask(thinker, messages=[USER, answer["message"], result], tools=[TOOL])
    _, called, told = template.messages
    assert called["reasoning_content"] == "hm"
    assert [call["function"]["arguments"] for call in called["tool_calls"]] == ARGUMENTS
    assert (told["role"], told["content"], told["name"]) == ("tool", "wet", "weather")


def test_the_model_s_abilities_are_listed(thinker: TestClient) -> None:
    shown = thinker.post("/api/show", json={"model": MODEL}).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
