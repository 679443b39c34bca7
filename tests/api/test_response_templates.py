"""Answers of a model whose calls are in no format that is known, but that has a response template."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from chat_streams import joined_stream
from numaserve.server.answers.reasoning.formats import reasoning_formats
from numaserve.server.answers.response_template.template import ResponseTemplate
from numaserve.server.app.application import ApiContext
from shared_apps import app_over
from tool_cases import CLOCK, USER, WEATHER
from whole_answers import TestClient

from tests.support.api_fakes import CONTEXT, FakeEngine, make_context
from tests.support.byte_tokenizer import ByteTokenizer, fixed
from tests.support.response_templates import CATASTROPHE, CATASTROPHIC

CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": each} for each in (WEATHER, CLOCK)]
CALL = '[call]{"id": "c1", "name": "weather", "arguments": {"city": "São Paulo"}}[/call]'
REPLY = f"[think] hm [/think]\nI look.\n{CALL}\n{CALL}"


PROMPTING = ByteTokenizer(chat_template="tools tool_calls", render=fixed("[turn]"))


@pytest.fixture(scope="module")
def responses() -> Iterator[ResponseTemplate]:
    special = [PROMPTING.token_bytes(each).decode() for each in PROMPTING.special_token_ids]
    made = ResponseTemplate(CATASTROPHIC, special, max_answers=99, cpu_seconds=0.5, seconds=60.0)
    yield made
    made.close()


@pytest.fixture
def served(engine: FakeEngine, responses: ResponseTemplate) -> ApiContext:
    engine.reply = REPLY
    context = replace(make_context(engine), tokenizer=PROMPTING, response_template=responses)
    return replace(context, limits=replace(context.limits, context_length=8 * CONTEXT))


@pytest.fixture
def caller(served: ApiContext) -> TestClient:
    return TestClient(app_over(served), base_url="http://127.0.0.1")  # not entered: others have the processes, too


def ask(caller: TestClient, **fields: Any) -> dict[str, Any]:
    answer = caller.post(CHAT, json={"messages": [USER], **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def message(caller: TestClient, **fields: Any) -> dict[str, Any]:
    return dict(ask(caller, **fields)["choices"][0]["message"])


def test_thought_text_and_calls_are_told_apart(caller: TestClient) -> None:
    answer = ask(caller, tools=TOOLS)
    (choice,) = answer["choices"]
    said = choice["message"]
    assert (said["content"], said["reasoning_content"], choice["finish_reason"]) == ("I look.", "hm", "tool_calls")
    assert [call["id"] for call in said["tool_calls"]] == ["c1", "c1"]
    assert [call["function"]["name"] for call in said["tool_calls"]] == ["weather"] * 2
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"city": "São Paulo"}
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == len("[think] hm")


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["without tools", "with tools"])
def test_a_stream_says_what_the_whole_answer_says(caller: TestClient, tools: list[Any]) -> None:
    asked: dict[str, Any] = {"tools": tools} if tools else {}
    whole = message(caller, **asked)
    streamed = joined_stream(caller.post(CHAT, json={"messages": [USER], "stream": True, **asked}).text)
    assert (streamed["content"], streamed["reasoning_content"]) == (whole["content"] or "", whole["reasoning_content"])
    calls = [call["function"] for call in whole.get("tool_calls", [])]
    assert streamed["tool_calls"] == calls


def test_a_stream_that_waits_gives_signs_of_life(engine: FakeEngine, served: ApiContext) -> None:
    engine.reply = CATASTROPHE
    caller = TestClient(app_over(replace(served, sse_ping_seconds=0.05)), base_url="http://127.0.0.1")
    text = caller.post(CHAT, json={"messages": [USER], "stream": True}).text
    assert ": ping" in text.partition("<a")[0]
    assert joined_stream(text)["content"] == CATASTROPHE


def test_calls_that_nobody_offered_are_text(caller: TestClient) -> None:
    said = message(caller)
    assert said["content"] == f"I look.\n{CALL}\n{CALL}"
    assert "tool_calls" not in said


@pytest.mark.parametrize(
    ("fields", "content", "thought"),
    [
        ({"include_reasoning": False}, "I look.", None),
        ({"separate_reasoning": False}, "[think] hm [/think]I look.", None),
    ],
)
def test_a_thought_is_left_out_or_left_in_the_text(
    caller: TestClient, fields: dict[str, Any], content: str, thought: str | None
) -> None:
    said = message(caller, tools=TOOLS, **fields)
    assert (said["content"], said.get("reasoning_content")) == (content, thought)


def test_one_call_is_left_where_they_must_not_be_parallel(caller: TestClient) -> None:
    assert len(message(caller, tools=TOOLS, parallel_tool_calls=False)["tool_calls"]) == 1


def test_thoughts_that_the_template_does_not_know_are_found_by_their_format(
    engine: FakeEngine, served: ApiContext
) -> None:
    fields = {name: each for name, each in CATASTROPHIC["fields"].items() if name not in {"thinking", "slow"}}
    template = ResponseTemplate({**CATASTROPHIC, "fields": fields}, max_answers=9)
    engine.reply = f"<think>\nhm\n</think>\n\nI look.{CALL}"
    thinks = replace(served, response_template=template, reasoning_format=reasoning_formats()["think"])
    try:
        said = message(TestClient(app_over(thinks), base_url="http://127.0.0.1"), tools=TOOLS)
    finally:
        template.close()
    assert (said["reasoning_content"], said["content"], len(said["tool_calls"])) == ("hm", "I look.", 1)


def test_several_answers_are_each_read(caller: TestClient) -> None:
    choices = ask(caller, tools=TOOLS, n=3)["choices"]
    assert [len(choice["message"]["tool_calls"]) for choice in choices] == [2, 2, 2]


def test_an_answer_that_takes_too_long_is_given_as_it_is(engine: FakeEngine, caller: TestClient) -> None:
    engine.reply = f"[think]hm[/think]{CATASTROPHE}"
    (choice,) = ask(caller, tools=TOOLS)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (engine.reply, "stop")


async def test_others_are_answered_meanwhile(engine: FakeEngine, served: ApiContext) -> None:
    template = ResponseTemplate(CATASTROPHIC, max_answers=9, cpu_seconds=1000.0, seconds=1000.0)
    app = app_over(replace(served, response_template=template))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:

        async def post(reply: str) -> dict[str, Any]:
            engine.reply = reply
            answer = await client.post(CHAT, json={"messages": [USER], "tools": TOOLS})
            return dict(answer.json()["choices"][0])

        caught = asyncio.create_task(post(CATASTROPHE))
        while not engine.admitted:
            await asyncio.sleep(0.01)
        assert [(await post(REPLY))["finish_reason"] for _ in range(3)] == ["tool_calls"] * 3
        assert not caught.done()
        template.close()
        assert (await caught)["message"]["content"] == CATASTROPHE


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "clock"}}])
def test_calls_cannot_be_demanded(caller: TestClient, choice: Any) -> None:
    answer = caller.post(CHAT, json={"messages": [USER], "tools": TOOLS, "tool_choice": choice})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "tools_unsupported")


def test_the_parser_sees_every_special_token_and_nobody_else_does(engine: FakeEngine, caller: TestClient) -> None:
    engine.reply = f"</s>I <t>look.{CALL}<t>"
    assert message(caller, tools=TOOLS)["content"] == "I look."
    assert engine.admitted[-1].shown_tokens == PROMPTING.special_token_ids
    assert message(caller, tools=TOOLS, skip_special_tokens=False)["content"] == "</s>I <t>look.\n<t>"


def test_anthropics_messages_have_the_same_parts(caller: TestClient) -> None:
    tool = {"name": "weather", "input_schema": WEATHER["parameters"]}
    body = {"messages": [USER], "max_tokens": 500, "tools": [tool], "thinking": {"type": "adaptive"}}
    blocks = caller.post("/v1/messages", json=body).json()["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    assert blocks[2]["input"] == {"city": "São Paulo"}


def test_ollama_is_told_of_calls_and_thoughts(caller: TestClient) -> None:
    capabilities = caller.post("/api/show", json={"model": "tiny/bytes"}).json()["capabilities"]
    assert {"tools", "thinking"} <= set(capabilities)
