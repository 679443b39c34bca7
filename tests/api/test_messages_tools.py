"""Tools and thoughts of POST /v1/messages."""

import json
from typing import Any

import pytest
from starlette.testclient import TestClient
from tool_cases import ARGUMENTS, CALL, SECOND, USER, WEATHER, Template

from tests.support.api_fakes import FakeEngine

TOOLS = [
    {"name": "weather", "description": "Tells it.", "input_schema": WEATHER["parameters"]},
    {"name": "clock", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
]
THOUGHT = "<think>\nLet me see.\n</think>\n\n"
THINKING = {"type": "enabled", "budget_tokens": 1024}


def ask(thinker: TestClient, **fields: Any) -> dict[str, Any]:
    answer = thinker.post("/v1/messages", json={"messages": [USER], "max_tokens": 1000, **fields})
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()
    return message


def refusal(thinker: TestClient, **fields: Any) -> str:
    answer = thinker.post("/v1/messages", json={"messages": [USER], "max_tokens": 1000, **fields})
    assert answer.status_code == 400
    return str(answer.json()["error"]["message"])


def streamed(thinker: TestClient, **fields: Any) -> dict[str, Any]:
    """The message that a stream's events make, as Anthropic's own thinker puts them together."""
    answer = thinker.post("/v1/messages", json={"messages": [USER], "max_tokens": 1000, "stream": True, **fields})
    message: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    for each in answer.text.removesuffix("\n\n").split("\n\n"):
        event = json.loads(each.split("\ndata: ")[1])
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                match delta["type"]:
                    case "text_delta":
                        block["text"] += delta["text"]
                    case "thinking_delta":
                        block["thinking"] += delta["thinking"]
                    case "signature_delta":
                        block["signature"] = delta["signature"]
                    case "input_json_delta":
                        inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
            case "content_block_stop":
                assert event["index"] == len(message["content"]) - 1
            case "message_delta":
                message |= event["delta"]
    for index, text in inputs.items():
        message["content"][index]["input"] = json.loads(text)
    return message


def test_a_call_is_a_block_with_an_id(thinker: TestClient) -> None:
    message = ask(thinker, tools=TOOLS)
    assert message["stop_reason"] == "tool_use"
    (block,) = message["content"]
    assert block.pop("id")
    assert block == {"type": "tool_use", "name": "weather", "input": ARGUMENTS}


@pytest.mark.parametrize(
    ("reply", "kinds"),
    [
        (CALL, ["tool_use"]),
        (f"I look.{CALL}", ["text", "tool_use"]),
        (f"{CALL}\n{SECOND}", ["tool_use", "tool_use"]),
        (f"{THOUGHT}So:{CALL}", ["thinking", "text", "tool_use"]),
        (f"{THOUGHT}Yes.", ["thinking", "text"]),
    ],
)
def test_the_events_of_a_stream_are_the_whole_answer(
    thinker: TestClient, engine: FakeEngine, reply: str, kinds: list[str]
) -> None:
    engine.reply = reply
    whole = ask(thinker, tools=TOOLS, thinking=THINKING)
    stream = streamed(thinker, tools=TOOLS, thinking=THINKING)
    assert [block["type"] for block in whole["content"]] == kinds
    for message in (whole, stream):
        assert len({block.pop("id") for block in message["content"] if "id" in block}) == kinds.count("tool_use")
    assert stream["content"] == whole["content"]
    assert stream["stop_reason"] == whole["stop_reason"]


@pytest.mark.parametrize("arguments", ['{"a": 1', "[1]", '{"a": 1e}', '{"a": ' + "[" * 900])
def test_an_input_that_is_no_object_is_shown_as_it_was_written(
    thinker: TestClient, engine: FakeEngine, arguments: str
) -> None:
    engine.reply = f'<tool_call>\n{{"name": "clock", "arguments": {arguments}'
    if arguments == "[1]":
        engine.reply += "}\n</tool_call>"
    (block,) = ask(thinker, tools=TOOLS)["content"]
    assert block["input"] == {"INVALID_JSON": arguments}


def test_an_input_may_have_numbers_of_any_length(thinker: TestClient, engine: FakeEngine) -> None:
    engine.reply = '<tool_call>\n{"name": "clock", "arguments": {"at": 123456789012345678901234567890}}\n</tool_call>'
    assert ask(thinker, tools=TOOLS)["content"][0]["input"] == {"at": 123456789012345678901234567890}


def test_a_thought_is_left_out_unless_it_is_asked_for(
    thinker: TestClient, engine: FakeEngine, template: Template
) -> None:
    engine.reply = f"{THOUGHT}Yes."
    for fields in ({}, {"thinking": {"type": "disabled"}}):
        assert ask(thinker, **fields)["content"] == [{"type": "text", "text": "Yes."}]
        assert template.arguments == {"enable_thinking": False, "thinking": False}
    omitted = ask(thinker, thinking={"type": "adaptive", "display": "omitted"}, output_config={"effort": "max"})
    assert [block["type"] for block in omitted["content"]] == ["text"]
    assert template.arguments == {"enable_thinking": True, "thinking": True, "reasoning_effort": "xhigh"}


def test_the_template_gets_the_tools_that_may_be_called(thinker: TestClient, template: Template) -> None:
    ask(thinker, tools=TOOLS)
    assert template.tools[0] == {"type": "function", "function": WEATHER}
    body = {"messages": [USER], "tools": TOOLS}
    assert thinker.post("/v1/messages/count_tokens", json=body).status_code == 200
    assert [tool["function"]["name"] for tool in template.tools] == ["weather", "clock"]
    message = ask(thinker, tools=TOOLS, tool_choice={"type": "none"})
    assert template.tools == []
    assert message["content"] == [{"type": "text", "text": CALL}]


def test_only_one_call_is_made_where_they_must_not_be_parallel(thinker: TestClient, engine: FakeEngine) -> None:
    engine.reply = f"{CALL}\n{SECOND}"
    assert len(ask(thinker, tools=TOOLS)["content"]) == 2
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(ask(thinker, tools=TOOLS, tool_choice=choice)["content"]) == 1


def test_an_answer_is_taken_back_with_the_results_of_its_calls(
    thinker: TestClient, engine: FakeEngine, template: Template
) -> None:
    engine.reply = f"{THOUGHT}So:{CALL}"
    content = ask(thinker, tools=TOOLS, thinking=THINKING)["content"]
    result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "rain", "is_error": False}
    turns = [USER, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    ask(thinker, messages=turns, tools=TOOLS)
    _, called, found = template.messages
    assert (called["content"], called["reasoning_content"]) == ("So:", "Let me see.")
    assert called["tool_calls"] == [
        {"id": content[-1]["id"], "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
    ]
    assert found == {"role": "tool", "content": "rain", "tool_call_id": content[-1]["id"], "name": "weather"}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_tools_that_cannot_fit_the_context_are_refused(thinker: TestClient, template: Template, path: str) -> None:
    tools = [{**TOOLS[1], "description": "x" * 600_000}]
    answer = thinker.post(path, json={"messages": [USER], "max_tokens": 3, "tools": tools})
    assert answer.status_code == 400
    assert "600" in answer.json()["error"]["message"]
    assert template.messages == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tool_choice": {"type": "any"}}, "the request has no tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}}, "a tool that the request does not define"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "'name' is required with the type 'tool'"),
        ({"tools": TOOLS, "tool_choice": {"type": "auto", "name": "clock"}}, "'name' is required with the type 'tool'"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "the same name"),
        ({"tools": [{"type": "customs", "name": "a", "input_schema": {}}]}, "did you mean 'custom'?"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}], "tool_choice": {"type": "any"}}, "no tools"),
        ({"tools": [{"type": "bash_20250124", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
    ],
)
def test_what_cannot_be_meant_is_refused(thinker: TestClient, fields: dict[str, Any], words: str) -> None:
    assert words in refusal(thinker, **fields)


def test_a_tool_of_the_vendor_s_servers_is_left_out_and_named(thinker: TestClient, template: Template) -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    answer = thinker.post("/v1/messages", json={"messages": [USER], "max_tokens": 9, "tools": [search, *TOOLS]})
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Numaserve-Ignored"] == "1, tools.web_search_20250305"
    assert [tool["function"]["name"] for tool in template.tools] == ["weather", "clock"]


@pytest.mark.parametrize(
    ("tool", "inputs"),
    [
        ({"type": "bash_20250124", "name": "bash"}, {"command", "restart"}),
        (
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 10_000},
            {"command", "path", "view_range", "file_text", "old_str", "new_str", "insert_line", "insert_text"},
        ),
        (
            {"type": "memory_20250818", "name": "memory", "cache_control": {"type": "ephemeral"}},
            {"command", "path", "view_range", "file_text", "old_str", "new_str", "insert_line", "insert_text"}
            | {"old_path", "new_path"},
        ),
    ],
)
def test_the_model_is_told_of_tools_that_the_client_runs(
    thinker: TestClient, template: Template, tool: dict[str, Any], inputs: set[str]
) -> None:
    ask(thinker, tools=[tool])
    (told,) = template.tools
    assert told["function"]["name"] == tool["name"]
    assert told["function"]["parameters"]["properties"].keys() == inputs
    assert told["function"]["description"]


def test_a_named_tool_is_called_once(thinker: TestClient, engine: FakeEngine) -> None:
    engine.reply = f"{CALL}\n{CALL}\n{CALL}"
    message = ask(thinker, tools=TOOLS, tool_choice={"type": "tool", "name": "weather"})
    assert [block["type"] for block in message["content"]] == ["tool_use"]
    assert len(ask(thinker, tools=TOOLS, tool_choice={"type": "any"})["content"]) == 3
