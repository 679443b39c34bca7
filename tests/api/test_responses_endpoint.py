"""POST /v1/responses, and what is stored of them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from numaserve.server.app.application import create_app
from numaserve.server.engine.types import GenerationFailed
from numaserve.server.http.body.route import INLINE_VALUES
from numaserve.server.surfaces.openai.responses.store import Kept, ResponseStore
from starlette.testclient import TestClient
from tool_cases import ARGUMENTS, CALL, CLOCK, SECOND, WEATHER, Template

from tests.support.api_fakes import MODEL, REPLY, TURN, FakeEngine, make_context

PATH = "/v1/responses"
TOOLS = [{"type": "function", **WEATHER}, {"type": "function", **CLOCK}]
USER = {"role": "user", "content": "hi"}
TEXT = {"type": "input_text", "text": "hi"}
SAID = {"type": "output_text", "annotations": [], "logprobs": []}
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


def prompt_of(engine: FakeEngine) -> str:
    return "".join("<t>" if token == TURN else chr(token) for token in engine.admitted[-1].prompt)


def refusal(client: TestClient, **fields: Any) -> dict[str, Any]:
    answer = client.post(PATH, json={"input": "hi", **fields})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_an_answer_has_openai_s_shape(client: TestClient, engine: FakeEngine) -> None:
    engine.cached_tokens = 4
    response = ask(client, metadata={"a": "b"}, instructions="be", temperature=0.5, max_output_tokens=50)
    assert prompt_of(engine) == "<t>system\nbe<t>user\nhi<t>"
    assert engine.admitted[0].sampling.temperature == 0.5
    prompt, generated = len(engine.admitted[0].prompt), len(REPLY.encode()) + 1
    assert response.pop("id").startswith("resp_")
    assert isinstance(response.pop("created_at"), int)
    (item,) = response.pop("output")
    assert item.pop("id").startswith("msg_")
    assert item == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": REPLY, "annotations": [], "logprobs": []}],
    }
    assert response == {
        "object": "response",
        "model": MODEL,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": generated,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + generated,
        },
        "background": False,
        "instructions": "be",
        "max_output_tokens": 50,
        "max_tool_calls": None,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": True,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": None,
        "truncation": "disabled",
        "user": None,
    }


def test_the_events_of_a_stream_come_in_openai_s_order(client: TestClient) -> None:
    begun, running, added, part, *deltas, done, part_done, item_done, last = events(client)
    assert (begun["type"], running["type"]) == ("response.created", "response.in_progress")
    assert begun["response"]["status"] == "in_progress"
    assert begun["response"]["output"] == []
    assert added["type"] == "response.output_item.added"
    assert (added["item"]["content"], added["item"]["status"]) == ([], "in_progress")
    assert part["type"] == "response.content_part.added"
    assert part["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert {delta["type"] for delta in deltas} == {"response.output_text.delta"}
    assert "".join(delta["delta"] for delta in deltas) == done["text"] == REPLY
    assert part_done["part"]["text"] == REPLY
    assert item_done["item"]["status"] == "completed"
    assert {event["item_id"] for event in (part, *deltas, done, part_done)} == {item_done["item"]["id"]}
    assert last["type"] == "response.completed"
    assert last["response"]["output"] == [item_done["item"]]
    assert last["response"]["usage"]["output_tokens"] == len(REPLY.encode()) + 1


def written(entries: list[dict[str, Any]]) -> str:
    return bytes(byte for entry in entries for byte in entry["bytes"]).decode()


@pytest.mark.parametrize(
    ("fields", "top"),
    [({"include": ["message.output_text.logprobs"]}, 0), ({"top_logprobs": 2}, 2), ({"top_logprobs": 0}, None)],
)
def test_a_text_has_log_probabilities_where_they_are_asked_for(
    client: TestClient, fields: dict[str, Any], top: int | None
) -> None:
    response = ask(client, **fields)
    entries = response["output"][0]["content"][0]["logprobs"]
    assert response["top_logprobs"] == (top or 0)
    assert {len(entry["top_logprobs"]) for entry in entries} == (set() if top is None else {top})
    assert {entry["logprob"] for entry in entries} <= {-0.5}
    assert written(entries) == ("" if top is None else REPLY)
    *_, added, part = (event for event in events(client, **fields) if "part" in event)
    deltas = [event for event in events(client, **fields) if event["type"] == "response.output_text.delta"]
    assert [entry for delta in deltas for entry in delta["logprobs"]] == entries == part["part"]["logprobs"]
    assert all(written(delta["logprobs"]) == delta["delta"] for delta in deltas if top is not None)
    assert added["part"]["logprobs"] == []


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


def test_stored_log_probabilities_are_given_back(client: TestClient) -> None:
    response = ask(client, top_logprobs=2)
    assert client.get(f"{PATH}/{response['id']}").json() == response
    followed = ask(client, previous_response_id=response["id"])
    listed = client.get(f"{PATH}/{followed['id']}/input_items").json()["data"]
    assert [item["content"][0].get("logprobs", []) for item in listed] == [[], [], []]


def test_an_answer_that_is_cut_is_incomplete(client: TestClient) -> None:
    response = ask(client, max_output_tokens=2)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert events(client, max_output_tokens=2)[-1]["type"] == "response.incomplete"


def test_a_failure_in_mid_stream_is_an_event(client: TestClient, engine: FakeEngine) -> None:
    engine.fail_after = 2
    engine.failure = GenerationFailed("A worker died.")
    last = events(client)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": "generation_failed", "message": "A worker died."}
    assert client.get(f"{PATH}/{last['response']['id']}").status_code == 404
    assert client.post(PATH, json={"input": "hi"}).status_code == 500


@pytest.mark.parametrize(
    ("reply", "kinds"),
    [
        (CALL, ["function_call"]),
        (f"{CALL}\n{SECOND}", ["function_call", "function_call"]),
        (f"{THOUGHT}So:{CALL}", ["reasoning", "message", "function_call"]),
        (f"{THOUGHT}Yes.", ["reasoning", "message"]),
        (f"{THOUGHT}", ["reasoning", "message"]),
        ("", ["message"]),
    ],
)
def test_thoughts_and_calls_are_items_streamed_and_whole(
    thinker: TestClient, engine: FakeEngine, reply: str, kinds: list[str]
) -> None:
    engine.reply = reply
    whole = ask(thinker, tools=TOOLS)["output"]
    told = events(thinker, tools=TOOLS)
    stream = told[-1]["response"]["output"]
    assert [item["type"] for item in whole] == kinds
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    added = [event["item"]["id"] for event in told if event["type"] == "response.output_item.added"]
    assert done == stream
    assert added == [item["id"] for item in stream]
    for index, item in enumerate(stream):
        deltas = "".join(event["delta"] for event in told if "delta" in event and event["output_index"] == index)
        assert deltas == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
    changing = {"id", "call_id"}
    assert [{k: v for k, v in item.items() if k not in changing} for item in whole] == [
        {k: v for k, v in item.items() if k not in changing} for item in stream
    ]


def test_a_call_has_openai_s_shape(thinker: TestClient, engine: FakeEngine, template: Template) -> None:
    engine.reply = CALL
    (call,) = ask(thinker, tools=TOOLS)["output"]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "weather", "completed")
    assert json.loads(call["arguments"]) == ARGUMENTS
    assert call["call_id"].startswith("call_")
    assert [tool["function"]["name"] for tool in template.tools] == ["weather", "clock"]


def test_items_are_turns_of_the_template(thinker: TestClient, template: Template) -> None:
    items = [
        {"role": "developer", "content": "be"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So:"}], "id": "msg_1"},
        {"type": "function_call", "call_id": "1", "name": "clock", "arguments": '{"a": 1}', "status": "completed"},
        {"type": "function_call_output", "call_id": "1", "output": "noon"},
    ]
    ask(thinker, items)
    assert template.messages == [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "So:",
            "reasoning_content": "hm",
            "thinking": "hm",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "clock", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "noon", "tool_call_id": "1"},
    ]


def test_a_response_is_followed_by_its_id_or_by_its_items_alike(
    thinker: TestClient, engine: FakeEngine, template: Template
) -> None:
    engine.reply = f"{THOUGHT}So:{CALL}"
    first = ask(thinker, tools=TOOLS, instructions="be")
    result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "rain"}
    ask(thinker, [result], previous_response_id=first["id"])
    by_id = template.messages
    ask(thinker, [{"role": "user", "content": "hi"}, *first["output"], result])
    assert by_id == template.messages
    assert [turn["role"] for turn in by_id] == ["user", "assistant", "tool"]  # instructions are not handed on


def test_a_stored_response_is_given_back_and_can_be_deleted(client: TestClient) -> None:
    response = ask(client)
    path = f"{PATH}/{response['id']}"
    assert client.get(path).json() == response
    assert client.delete(path).json() == {"id": response["id"], "object": "response", "deleted": True}
    for answer in (client.get(path), client.delete(path)):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found")


def test_a_response_that_is_not_to_be_stored_is_not(client: TestClient) -> None:
    response = ask(client, store=False)
    assert response["store"] is False
    assert client.get(f"{PATH}/{response['id']}").status_code == 404
    assert refusal(client, previous_response_id=response["id"])["code"] == "previous_response_not_found"


def test_a_response_stored_under_one_key_is_not_there_for_another() -> None:
    with TestClient(create_app(make_context(FakeEngine(), keys=["one", "two"]))) as client:
        client.headers["Authorization"] = "Bearer one"
        response = ask(client)
        path, item_id = f"{PATH}/{response['id']}", response["output"][0]["id"]
        client.headers["Authorization"] = "Bearer two"
        assert client.get(path).status_code == 404
        assert client.delete(path).status_code == 404
        assert client.get(f"{path}/input_items").status_code == 404
        assert refusal(client, previous_response_id=path.rpartition("/")[2])["param"] == "previous_response_id"
        assert refusal(client, input=[{"type": "item_reference", "id": item_id}])["param"] == "input[0]"
        client.headers["Authorization"] = "Bearer one"
        assert client.get(path).status_code == 200
        del client.headers["Authorization"]
        client.headers["x-api-key"] = "one"
        assert client.get(path).status_code == 200


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


def test_the_items_that_a_response_was_made_of_are_listed(thinker: TestClient, engine: FakeEngine) -> None:
    engine.reply = f"{THOUGHT}So:{CALL}"
    first = ask(thinker, tools=TOOLS, instructions="be")
    result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "rain"}
    others = [
        {"role": "developer", "content": [TEXT, TEXT]},
        {"role": "assistant", "content": "Fine.", "id": "mine"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "1", "name": "clock", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "1", "output": [TEXT]},
    ]
    second = ask(thinker, [result, *others], tools=TOOLS, previous_response_id=first["id"])
    path = f"{PATH}/{second['id']}/input_items"
    listed = thinker.get(path, params={"order": "asc"}).json()
    items, said = listed["data"], second["output"]
    assert (listed["object"], listed["has_more"]) == ("list", False)
    assert (listed["first_id"], listed["last_id"]) == (items[0]["id"], items[-1]["id"])
    assert items[1:4] == first["output"]
    ids = [item.pop("id") for item in items]
    assert len({*ids, *(item["id"] for item in said)}) == len(items) + len(said)
    done = {"status": "completed"}
    assert items[:1] + items[4:] == [
        {"type": "message", "role": "user", "content": [TEXT], **done},
        {**result, **done},
        {"type": "message", "role": "developer", "content": [TEXT, TEXT], **done},
        {"type": "message", "role": "assistant", "content": [{**SAID, "text": "Fine."}], **done},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "content": [], **done},
        {**others[3], **done},
        {**others[4], **done},
    ]
    newest = thinker.get(path, params={"limit": 2}).json()
    assert [item["id"] for item in newest["data"]] == ids[:-3:-1]
    assert newest["has_more"] is True
    rest = thinker.get(path, params={"after": newest["last_id"]}).json()
    assert [item["id"] for item in rest["data"]] == ids[-3::-1]
    assert thinker.get(path, params={"after": ids[0]}).json()["data"] == []


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


@pytest.mark.parametrize(
    ("query", "param"), [({"limit": 0}, "limit"), ({"order": "up"}, "order"), ({"after": "msg_x"}, "after")]
)
def test_what_cannot_be_listed_is_refused(client: TestClient, query: dict[str, Any], param: str) -> None:
    answer = client.get(f"{PATH}/{ask(client)['id']}/input_items", params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert client.get(f"{PATH}/resp_x/input_items", params={}).status_code == 404


def test_items_of_stored_answers_may_be_referred_to(
    thinker: TestClient, engine: FakeEngine, template: Template
) -> None:
    engine.reply = f"{THOUGHT}So:{CALL}"
    first = ask(thinker, tools=TOOLS)
    result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "rain"}
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    second = ask(thinker, [USER, *references, result], tools=TOOLS)
    by_reference = template.messages
    ask(thinker, [USER, *first["output"], result])
    assert by_reference == template.messages
    listed = thinker.get(f"{PATH}/{second['id']}/input_items", params={"order": "asc"}).json()["data"]
    assert listed[1:-1] == first["output"]
    # Once, and of an answer that is stored, of the same owner.
    more = [{"type": "item_reference", "id": item["id"]} for item in second["output"]]
    ask(thinker, [USER, *references, result, *more])
    for unknown in (references[0], {"type": "item_reference", "id": "msg_x_1"}, {"type": "item_reference", "id": ""}):
        error = refusal(thinker, input=[USER, *references, unknown])
        assert (error["param"], error["code"]) == ("input[4]", "item_not_found")
    thinker.delete(f"{PATH}/{first['id']}")
    assert refusal(thinker, input=[USER, *references])["param"] == "input[1]"


def test_a_refusal_tells_what_may_be_sent_instead(client: TestClient) -> None:
    message = "Invalid value for 'background': this field is not supported; omit it or use null, false."
    assert refusal(client, background=True)["message"] == message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [USER, {"role": "user", "content": [TEXT, {"type": "input_image"}]}]}, "input[1].content[1]"),
        ({"input": [USER, {"role": "user", "content": [TEXT, TEXT | {"text": 1}]}]}, "input[1].content[1].text"),
        ({"input": [USER, {"role": "user", "content": 1}]}, "input[1].content"),
        ({"input": [USER, {"role": "user"}]}, "input[1].content"),
        ({"input": [USER, {"type": "function_call_output", "call_id": 1, "output": ""}]}, "input[1].call_id"),
        ({"input": [USER, {"type": "item_reference"}]}, "input[1].id"),
        ({"input": [USER, {"type": "x" * 99}]}, "input[1]"),
        ({"tools": [{"type": "functions"}]}, "tools[0].type"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "functional"}]}]}, "tools[0].tools[0].type"),
        ({"tools": TOOLS * 2}, "tools.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"truncation": "middle"}, "truncation"),
        ({"include": ["message.output_text.texts"]}, "include[0]"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_output_token": 9}, "max_output_token"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
    ],
)
def test_what_is_refused_says_which_field_it_is_about(client: TestClient, fields: dict[str, Any], param: str) -> None:
    error = refusal(client, **fields)
    assert error["param"] == param
    assert "[text]" not in error["message"]


MCP = {
    "type": "namespace",
    "name": "mcp__atlas",
    "description": "Maps.",
    "tools": [{"type": "function", **WEATHER}, {"type": "custom", "name": "patch"}],
}


def test_functions_of_a_namespace_are_known_by_both_names(
    thinker: TestClient, engine: FakeEngine, template: Template
) -> None:
    engine.reply = CALL.replace("weather", "mcp__atlas__weather")
    tools = [MCP, *TOOLS, {"type": "web_search"}]
    answer = thinker.post(PATH, json={"input": "hi", "tools": tools})
    assert answer.headers["X-Numaserve-Ignored"] == "2, tools.custom, tools.web_search"
    assert [tool["function"]["name"] for tool in template.tools] == ["mcp__atlas__weather", "weather", "clock"]
    response = answer.json()
    (call,) = response["output"]
    assert (call["namespace"], call["name"]) == ("mcp__atlas", "weather")
    assert response["tools"][0] == {**MCP, "tools": [response["tools"][1]]}
    assert [event["item"]["namespace"] for event in events(thinker, tools=tools) if "item" in event] == [
        "mcp__atlas",
        "mcp__atlas",
    ]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "12"}
    ask(thinker, [USER, call, result], tools=tools)
    told = template.messages
    ask(thinker, [result], tools=tools, previous_response_id=response["id"])
    assert told == template.messages
    (in_history,) = told[1]["tool_calls"]  # type: ignore[misc]
    assert in_history["function"]["name"] == "mcp__atlas__weather"


def test_a_function_of_a_namespace_is_chosen_by_both_names(thinker: TestClient) -> None:
    chosen = {"type": "function", "namespace": "mcp__atlas", "name": "weather"}
    assert ask(thinker, tools=[MCP], tool_choice=chosen)["tool_choice"] == chosen
    some = {"type": "allowed_tools", "mode": "required", "tools": [chosen]}
    assert ask(thinker, tools=[MCP, *TOOLS], tool_choice=some)["tool_choice"] == some
    assert refusal(thinker, tools=[MCP], tool_choice={"type": "function", "name": "weather"})["param"] == "tool_choice"


def test_namespaces_have_no_two_functions_of_one_name_and_not_too_many(thinker: TestClient) -> None:
    same = {**MCP, "name": "mcp"}, {"type": "function", "name": "mcp__weather"}
    assert refusal(thinker, tools=same)["param"] == "tools.name"
    many = [{"type": "function", "name": f"f{index}"} for index in range(256)]
    tools = [{"type": "namespace", "name": f"n{index}", "tools": many} for index in range(5)]
    assert refusal(thinker, tools=tools)["param"] == "tools"
    assert ask(thinker, tools=tools[:4])["output"]


def test_the_tokens_of_an_input_are_counted(thinker: TestClient, engine: FakeEngine) -> None:
    first = ask(thinker, tools=TOOLS)
    more = {"input": "and?", "instructions": "be", "tools": TOOLS, "previous_response_id": first["id"]}
    counted = thinker.post(f"{PATH}/input_tokens", json=more).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": len(engine.admitted[-1].prompt)}
    assert thinker.post(f"{PATH}/input_tokens", json={"input": "x", "model": "other"}).status_code == 404


@pytest.mark.parametrize("arguments", ['{"city": "Par', "[1]", "no"])
def test_a_call_that_was_cut_off_is_taken_back(thinker: TestClient, template: Template, arguments: str) -> None:
    call = {"type": "function_call", "call_id": "1", "name": "weather", "arguments": arguments}
    response = ask(thinker, [USER, call, {"type": "function_call_output", "call_id": "1", "output": "?"}])
    (told,) = template.messages[1]["tool_calls"]  # type: ignore[misc]
    assert told["function"]["arguments"] == {"arguments": arguments}
    listed = thinker.get(f"{PATH}/{response['id']}/input_items", params={"order": "asc"}).json()["data"]
    assert listed[1]["arguments"] == arguments


@pytest.mark.parametrize(
    "fields",
    [
        {"truncation": "auto"},
        {"service_tier": "priority"},
        {"reasoning": {"effort": "max"}},
        {"text": {"verbosity": "low"}},
    ],
)
def test_fields_that_change_nothing_are_taken(thinker: TestClient, fields: dict[str, Any]) -> None:
    assert ask(thinker, **fields)["truncation"] == "disabled"


def test_an_image_that_a_function_has_returned_is_told_of(thinker: TestClient, template: Template) -> None:
    call = {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"}
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    response = ask(thinker, [USER, call, {"type": "function_call_output", "call_id": "1", "output": [image, TEXT]}])
    assert template.messages[-1]["content"] == "[An image, which this server does not show to the model.]\nhi"
    more = ask(thinker, [USER], previous_response_id=response["id"])
    assert more["output"]
