import json
import re
from typing import Any

import pytest
from numaserve.server.app.application import create_app
from numaserve.server.engine.types import GenerationFailed, QueueFull
from numaserve.server.surfaces.anthropic.schema import MessagesRequest
from starlette.testclient import TestClient

from tests.support.api_fakes import CONTEXT, MODEL, REPLY, TURN, FakeEngine, make_context
from tests.support.error_forms import error_message

USER = [{"role": "user", "content": "hi"}]
CALLED = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
PROMPT = [TURN, *b"user\nhi", TURN]
GENERATED = len(REPLY.encode()) + 1


def ask(client: TestClient, **fields: Any) -> Any:
    return client.post("/v1/messages", json={"model": MODEL, "messages": USER, "max_tokens": 50, **fields})


def events(text: str) -> list[Any]:
    parsed = []
    for each in text.removesuffix("\n\n").split("\n\n"):
        name, data = each.split("\n")
        parsed.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {parsed[-1]['type']}"
    return parsed


def kind_of(answer: Any) -> str:
    error_message(answer)
    return str(answer.json()["error"]["type"])


def refusal(client: TestClient, **fields: Any) -> str:
    answer = ask(client, **fields)
    assert answer.status_code == 400
    return error_message(answer)


def prompt_of(client: TestClient, engine: FakeEngine, messages: list[Any], **fields: Any) -> str:
    assert ask(client, messages=messages, **fields).status_code == 200
    return "".join("<t>" if token == TURN else chr(token) for token in engine.admitted[-1].prompt)


def test_an_answer_has_exactly_anthropic_s_shape(client: TestClient, engine: FakeEngine) -> None:
    engine.cached_tokens = 4
    answer = ask(client).json()
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": REPLY}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(PROMPT) - 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": GENERATED,
        },
    }
    assert engine.admitted[0].prompt == PROMPT


def test_a_stream_has_the_events_in_anthropic_s_order(client: TestClient) -> None:
    answer = ask(client, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    start, begin, *deltas, stop, last, end = events(answer.text)
    assert start["type"] == "message_start"
    assert start["message"]["content"] == []
    assert start["message"]["usage"]["input_tokens"] == len(PROMPT)
    assert begin == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert {(delta["type"], delta["index"]) for delta in deltas} == {("content_block_delta", 0)}
    assert "".join(delta["delta"]["text"] for delta in deltas) == REPLY
    assert stop == {"type": "content_block_stop", "index": 0}
    assert last["type"] == "message_delta"
    assert last["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert last["usage"]["output_tokens"] == GENERATED
    assert end == {"type": "message_stop"}


def test_an_answer_without_text_has_no_blocks(client: TestClient, engine: FakeEngine) -> None:
    engine.reply = ""
    assert ask(client).json()["content"] == []
    assert [event["type"] for event in events(ask(client, stream=True).text)] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]


def test_an_end_by_max_tokens_is_told(client: TestClient) -> None:
    answer = ask(client, max_tokens=2).json()
    assert (answer["stop_reason"], answer["usage"]["output_tokens"]) == ("max_tokens", 2)


def test_an_end_by_the_context_is_told_and_not_refused(client: TestClient, engine: FakeEngine) -> None:
    engine.reply = "x" * CONTEXT
    answer = ask(client, max_tokens=32_000).json()
    assert answer["stop_reason"] == "model_context_window_exceeded"
    assert answer["usage"]["output_tokens"] == CONTEXT - len(PROMPT)


def test_an_end_by_a_stop_sequence_names_it(client: TestClient, engine: FakeEngine) -> None:
    engine.stop_reason = "世"
    answer = ask(client, stop_sequences=["世", "x"]).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "世")
    assert engine.admitted[0].stop == ("世", "x")


def test_sampling_is_what_was_asked_for(client: TestClient, engine: FakeEngine) -> None:
    ask(client, temperature=0.5, top_p=0.25, top_k=7, max_tokens=9)
    request = engine.admitted[0]
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.5, 0.25, 7)
    assert request.max_new_tokens == 9


@pytest.mark.parametrize("system", ["be\nkind", [{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}]])
def test_the_system_s_text_comes_first(client: TestClient, engine: FakeEngine, system: object) -> None:
    assert prompt_of(client, engine, USER, system=system) == "<t>system\nbe\nkind<t>user\nhi<t>"


def test_blocks_of_text_are_lines_and_neighbours_of_one_role_one_turn(client: TestClient, engine: FakeEngine) -> None:
    cached = {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, cached]},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "?"}, {"type": "text", "text": "c"}]},
        {"role": "user", "content": "d"},
        {"role": "user", "content": "e"},
    ]
    assert prompt_of(client, engine, messages) == "<t>user\na\nb<t>assistant\nc<t>user\nd\ne<t>"


def test_tool_calls_and_results_are_turns_for_templates_that_know_them() -> None:
    call = {"type": "tool_use", "id": "1", "name": "look", "input": {"at": ["it"]}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, call]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "seen"}]},
                {"type": "text", "text": "and?"},
            ],
        },
    ]
    conversation = MessagesRequest.model_validate({"messages": messages, "max_tokens": 1}).messages
    assert conversation.needs_tools
    assert conversation.messages == [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "thinking": "hm",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": ["it"]}}}],
        },
        {"role": "tool", "content": "seen", "tool_call_id": "1", "name": "look"},
        {"role": "user", "content": "and?"},
    ]


@pytest.mark.parametrize(
    ("kind", "where", "what"), [("image", "", "images"), ("document", ".source", "non-text documents")]
)
def test_images_and_documents_are_refused_by_name(client: TestClient, kind: str, where: str, what: str) -> None:
    block = {"type": kind, "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    message = refusal(client, messages=[{"role": "user", "content": [block]}])
    assert message.startswith(
        f"Invalid value for 'messages[0].content[0]{where}': this model does not accept {what}, only text;"
    )


def test_an_image_that_a_tool_has_returned_is_told_of(client: TestClient, engine: FakeEngine) -> None:
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [block, {"type": "text", "text": "b"}]}
    turns = [*USER, {"role": "assistant", "content": [CALLED]}, {"role": "user", "content": [result]}]
    prompt = prompt_of(client, engine, turns)
    assert "An image, which this server does not show to the model.]\nb" in prompt


NOTE = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "n"}, "title": "t"}
QUOTE = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "q"}]}, "context": "c"}
FOUND = {"type": "search_result", "source": "u", "title": "f", "content": [{"type": "text", "text": "r"}]}
REFERENCE = {"type": "tool_reference", "tool_name": "look"}


def test_documents_and_search_results_are_given_to_the_model_as_text(client: TestClient, engine: FakeEngine) -> None:
    citing = {**NOTE, "citations": {"enabled": True}, "cache_control": {"type": "ephemeral"}}
    prompt = prompt_of(client, engine, [{"role": "user", "content": [citing, QUOTE, FOUND]}])
    assert prompt == "<t>user\nt\nn\nc\nq\nf\nu\nr<t>"


def test_results_of_tools_have_documents_and_the_names_of_tools() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": [NOTE, FOUND, REFERENCE]}
    messages = [*USER, {"role": "assistant", "content": [CALLED]}, {"role": "user", "content": [result]}]
    body = MessagesRequest.model_validate({"messages": messages, "max_tokens": 1})
    assert body.messages.messages[-1]["content"] == "t\nn\nf\nu\nr\nlook"


def test_a_turn_of_the_system_may_come_late(client: TestClient, engine: FakeEngine) -> None:
    late = [*USER, {"role": "system", "content": "be kind"}, {"role": "assistant", "content": "a"}, *USER]
    assert prompt_of(client, engine, late) == "<t>user\nhi<t>system\nbe kind<t>assistant\na<t>user\nhi<t>"
    counted = client.post("/v1/messages/count_tokens", json={"messages": late, "system": "x"})
    assert counted.json()["input_tokens"] == len(engine.admitted[-1].prompt) + len("<system\nx")


BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=0f1e2;"


@pytest.mark.parametrize(
    ("system", "begin"),
    [
        ([{"type": "text", "text": BILLING}, {"type": "text", "text": "be kind"}], "system\nbe kind<t>"),
        (f"{BILLING}\nbe kind\n{BILLING}", f"system\nbe kind\n{BILLING}<t>"),
        (BILLING, ""),
        (f" {BILLING}", f"system\n {BILLING}<t>"),
        ([{"type": "text", "text": f"be kind\n{BILLING}"}], f"system\nbe kind\n{BILLING}<t>"),
    ],
)
def test_a_billing_header_is_left_out_of_the_system_s_text_alone(
    client: TestClient, engine: FakeEngine, system: object, begin: str
) -> None:
    said = [{"role": "user", "content": BILLING}]
    assert prompt_of(client, engine, said, system=system) == f"<t>{begin}user\n{BILLING}<t>"
    counted = client.post("/v1/messages/count_tokens", json={"messages": said, "system": system})
    assert counted.json()["input_tokens"] == len(engine.admitted[-1].prompt)


@pytest.mark.parametrize("length", [CONTEXT - len(PROMPT) + 2, CONTEXT, 5 * CONTEXT, 300 * CONTEXT])
def test_a_conversation_that_is_too_long_is_refused_in_anthropic_s_words(client: TestClient, length: int) -> None:
    answer = ask(client, messages=[{"role": "user", "content": "x" * length}])
    assert (answer.status_code, kind_of(answer)) == (400, "invalid_request_error")
    found = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", error_message(answer))
    assert found is not None
    assert int(found[1]) > int(found[2])
    assert int(found[2]) in {CONTEXT - 1, CONTEXT}


@pytest.mark.parametrize("wanted", [{"output_format": FORMAT}, {"output_config": {"format": FORMAT}}])
def test_an_output_format_is_enforced(client: TestClient, engine: FakeEngine, wanted: dict[str, Any]) -> None:
    assert ask(client, **wanted).status_code == 200
    assert engine.admitted[-1].matcher is not None


def test_thinking_between_tools_is_thinking(client: TestClient, engine: FakeEngine) -> None:
    assert prompt_of(client, engine, USER, thinking={"type": "between_tools"}).startswith("T<t>")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "system", "content": [CALLED]}]}, "a message with the role 'system' cannot contain"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "x" * 99}]}]}, "supported types are"),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
            "of the type 'thinking'",
        ),
        ({"messages": [*USER, {"role": "assistant", "content": "He"}]}, "end with a message of the role 'user'"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"max_token": 3}, "did you mean 'max_tokens'?"),
        ({"container": "x"}, "container"),
        ({"output_format": {"type": "json_schema"}}, "needs a field 'schema'"),
        ({"output_format": FORMAT, "output_config": {"format": FORMAT}}, "set only one of them"),
    ],
)
def test_what_is_refused_says_which_field_it_is_about(client: TestClient, fields: dict[str, Any], words: str) -> None:
    assert words in refusal(client, **fields)


@pytest.mark.parametrize("value", ['{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', '{"\\ud800": 1}'])
def test_the_input_of_a_call_must_be_data_that_can_be_written(client: TestClient, value: str) -> None:
    body = (
        '{"max_tokens": 1, "messages": [{"role": "assistant", "content": '
        f'[{{"type": "tool_use", "id": "1", "name": "f", "input": {value}}}]}}]}}'
    )
    answer = client.post("/v1/messages", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert "messages[0].content" in error_message(answer)


def test_another_model_is_not_found(client: TestClient) -> None:
    answer = ask(client, model="other")
    assert (answer.status_code, kind_of(answer)) == (404, "not_found_error")


def test_a_full_queue_and_a_server_that_loads_have_their_own_types(client: TestClient, engine: FakeEngine) -> None:
    engine.refusal = QueueFull("Full.", retry_after=3)
    answer = ask(client)
    assert (answer.status_code, kind_of(answer)) == (429, "rate_limit_error")
    assert answer.headers["retry-after"] == "3"
    engine.ready = False
    assert kind_of(ask(client)) == "overloaded_error"


def test_the_middleware_s_errors_have_the_shape_too() -> None:
    client = TestClient(create_app(make_context(FakeEngine(), keys=["k"], max_body_bytes=1000)))
    assert kind_of(ask(client)) == "authentication_error"
    client.headers["x-api-key"] = "k"
    client.headers["anthropic-version"] = "2023-06-01"
    assert ask(client).status_code == 200
    assert kind_of(ask(client, system="x" * 1000)) == "request_too_large"
    assert kind_of(client.get("/v1/messages")) == "invalid_request_error"


def test_a_failure_in_mid_stream_is_an_event(client: TestClient, engine: FakeEngine) -> None:
    engine.fail_after = 2
    engine.failure = GenerationFailed("A worker died.")
    *_, last = events(ask(client, stream=True).text)
    assert last == {"type": "error", "error": {"type": "api_error", "message": "A worker died."}, "request_id": None}
    assert ask(client).status_code == 500


def test_tokens_are_counted_as_they_would_be_generated_from(client: TestClient, engine: FakeEngine) -> None:
    body = {"model": MODEL, "messages": USER, "system": "be"}
    counted = client.post("/v1/messages/count_tokens", json=body).json()
    answer = ask(client, system="be").json()
    assert counted == {"input_tokens": answer["usage"]["input_tokens"]}
    assert len(engine.admitted) == 1
