"""POST /v1/responses, and what is stored of them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from numaserve.server.app.application import create_app
from numaserve.server.http.body.route import INLINE_VALUES
from numaserve.server.surfaces.openai.responses.store import Kept, ResponseStore
from tool_cases import CALL, CLOCK, WEATHER, Template
from whole_answers import TestClient

from tests.support.api_fakes import FakeEngine, make_context

PATH = "/v1/responses"
TOOLS = [{"type": "function", **WEATHER}, {"type": "function", **CLOCK}]
USER = {"role": "user", "content": "hi"}
THOUGHT = "<think>\nLet me see.\n</think>\n\n"


def ask(client: TestClient, given: object = "hi", **fields: Any) -> dict[str, Any]:
    answer = client.post(PATH, json={"input": given, **fields})
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


def events(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    answer = client.post(PATH, json={"input": "hi", "stream": True, **fields})
    assert answer.headers["content-type"].startswith("text/event-stream")
    parsed = []
    for each in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = each.split("\n")
        parsed.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {parsed[-1]['type']}"
    assert [event["sequence_number"] for event in parsed] == list(range(len(parsed)))
    return parsed


def refusal(client: TestClient, **fields: Any) -> dict[str, Any]:
    answer = client.post(PATH, json={"input": "hi", **fields})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def written(entries: list[dict[str, Any]]) -> str:
    return bytes(byte for entry in entries for byte in entry["bytes"]).decode()


@pytest.mark.parametrize("text", ["So:", "2 < 3, </x> and <tool.", "<tool", "a世 界b", ""])
def test_only_texts_have_log_probabilities_beside_thoughts_and_calls(
    thinker: TestClient, engine: FakeEngine, text: str
) -> None:
    engine.reply = f"{THOUGHT}{text}{CALL}{text}"
    asked = {"tools": TOOLS, "top_logprobs": 1}
    told = events(thinker, **asked)
    for items in (ask(thinker, **asked)["output"], told[-1]["response"]["output"]):
        parts = [item["content"][0] for item in items if item["type"] == "message"]
        assert [written(part["logprobs"]) for part in parts] == [part["text"] for part in parts]
        assert "".join(part["text"] for part in parts) == text * 2
        assert "logprobs" not in items[0]["content"][0]
    deltas = [event for event in told if event["type"] == "response.output_text.delta"]
    assert all(written(delta["logprobs"]) == delta["delta"] for delta in deltas)


def test_the_least_used_responses_go_when_there_is_no_room(engine: FakeEngine) -> None:
    context = make_context(engine)
    with TestClient(create_app(replace(context, limits=replace(context.limits, max_bytes_stored=6000)))) as client:
        kept = ask(client)["id"]
        others = [ask(client)["id"] for _ in range(20) if client.get(f"{PATH}/{kept}").status_code == 200]
        statuses = [client.get(f"{PATH}/{other}").status_code for other in others]
    assert len(others) == 20
    assert statuses[0] == 404
    assert statuses[-1] == 200


def test_one_key_s_large_responses_leave_those_of_another() -> None:
    context = make_context(FakeEngine(), keys=["one", "two"])
    limits = replace(context.limits, max_bytes_stored=20_000)
    with TestClient(create_app(replace(context, limits=limits))) as client:
        client.headers["x-api-key"] = "one"
        path = f"{PATH}/{ask(client)['id']}"
        client.headers["x-api-key"] = "two"
        unused = [{**TOOLS[0], "description": "x" * 5000}]
        for _ in range(8):
            assert ask(client, tools=unused, tool_choice="none")["store"] is True
        client.headers["x-api-key"] = "one"
        assert client.get(path).status_code == 200


def test_the_store_keeps_nothing_that_is_larger_than_it() -> None:
    store = ResponseStore(2000)
    assert store.put(b"a", "small", Kept.of({}, [], []))
    assert not store.put(b"a", "large", Kept.of({"text": "x" * 2000}, [], []))
    assert store.get(b"a", "large") is None
    assert store.get(b"a", "small") is not None  # it did not go for what has no room


def test_a_response_that_has_no_room_does_not_say_that_it_is_stored(engine: FakeEngine) -> None:
    context = make_context(engine)
    with TestClient(create_app(replace(context, limits=replace(context.limits, max_bytes_stored=100)))) as client:
        response = ask(client)
        assert response["store"] is False
        assert client.get(f"{PATH}/{response['id']}").status_code == 404
        assert events(client)[-1]["response"]["store"] is False


def test_an_input_that_is_checked_in_another_process_is_kept_alike(thinker: TestClient, template: Template) -> None:
    call = {"type": "function_call", "call_id": "1", "name": "clock", "arguments": '{"a":1}'}
    reference = {"type": "item_reference", "id": ask(thinker)["output"][0]["id"]}
    long = ask(thinker, [*[USER] * INLINE_VALUES, reference, USER, call])
    assert len(template.messages) == INLINE_VALUES + 3
    newest = thinker.get(f"{PATH}/{long['id']}/input_items", params={"limit": 4}).json()["data"]
    few = ask(thinker, [USER, reference, USER, call])
    listed = thinker.get(f"{PATH}/{few['id']}/input_items").json()["data"]
    assert [item.pop("id").partition("_")[0] for item in newest] == ["fc", "msg", "msg", "msg"]
    assert newest == [{name: value for name, value in item.items() if name != "id"} for item in listed]


MCP = {
    "type": "namespace",
    "name": "mcp__atlas",
    "description": "Maps.",
    "tools": [{"type": "function", **WEATHER}, {"type": "custom", "name": "patch"}],
}


def test_namespaces_have_no_two_functions_of_one_name_and_not_too_many(thinker: TestClient) -> None:
    same = {**MCP, "name": "mcp"}, {"type": "function", "name": "mcp__weather"}
    assert refusal(thinker, tools=same)["param"] == "tools.name"
    many = [{"type": "function", "name": f"f{index}"} for index in range(256)]
    tools = [{"type": "namespace", "name": f"n{index}", "tools": many} for index in range(5)]
    assert refusal(thinker, tools=tools)["param"] == "tools"
    assert ask(thinker, tools=tools[:4])["output"]
