"""Tools and thoughts of POST /v1/messages."""

import json
from typing import Any

import pytest
from tool_cases import CALL, SECOND, USER, WEATHER
from whole_answers import TestClient

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
