"""Fields that the server does not know are ignored and named in the answer; misspelt ones are refused."""

import json
import logging
from typing import Any

import pytest
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, FakeEngine, make_context

HEADER = "X-Numaserve-Ignored"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
    "/tokenize": {"model": MODEL, "prompt": "hi"},
    "/detokenize": {"model": MODEL, "tokens": [104]},
}


def post(client: TestClient, path: str, fields: dict[str, Any]) -> Any:
    content = json.dumps({**BODIES[path], **fields})
    return client.post(path, content=content, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("path", BODIES)
def test_an_unknown_field_is_ignored_and_the_answer_says_so(client: TestClient, path: str) -> None:
    answer = post(client, path, {"unheard_of": {"x": [1]}})
    assert answer.status_code == 200
    assert answer.headers[HEADER] == "1, unheard_of"


@pytest.mark.parametrize("path", BODIES)
def test_an_answer_to_known_fields_has_no_such_header(client: TestClient, path: str) -> None:
    assert HEADER not in post(client, path, {}).headers


def test_unknown_fields_inside_of_others_are_named_too(client: TestClient) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi", "part_field": 1}], "message_field": 2}]
    answer = post(
        client,
        "/v1/chat/completions",
        {"messages": messages, "stream": True, "stream_options": {"an_option": 1}},
    )
    assert answer.status_code == 200
    assert sorted(answer.headers[HEADER].split(", ")) == ["3", "an_option", "message_field", "part_field"]


def test_the_header_is_bounded_and_holds_only_what_a_header_may(client: TestClient) -> None:
    strange = ["ä", "\ud800", "a\r\nX-Evil: 1", "", "x" * 65, "\x7f", 'quo"te', "back\\slash", "sp ace", "1st"]
    fields = dict.fromkeys([*strange, *(f"field_{index}" for index in range(100))], 1)
    header = post(client, "/v1/completions", fields).headers[HEADER]
    count, *names = header.split(", ")
    assert int(count) == len(fields)
    assert names[:4] == ['"quo\\"te"', '"back\\\\slash"', '"sp ace"', '"1st"']
    assert len(names) == 16
    assert "Evil" not in header


@pytest.mark.parametrize("path", BODIES)
def test_strict_fields_refuses_what_is_not_known(engine: FakeEngine, path: str) -> None:
    with TestClient(app_over(make_context(engine, strict_fields=True))) as client:
        answer = post(client, path, {"unheard_of": 1})
        assert engine.admitted == []
        assert post(client, path, {}).status_code == 200
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "unknown_parameter"
    assert answer.json()["error"]["param"] == "unheard_of"


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("max_token", "max_tokens"),
        ("temprature", "temperature"),
        ("Temperature", "temperature"),
        ("top_logprob", "top_logprobs"),
        ("stream_option", "stream_options"),
        ("response_formats", "response_format"),
        ("max_completions_tokens", "max_completion_tokens"),
    ],
)
def test_a_misspelt_field_is_refused_with_the_right_name(client: TestClient, misspelt: str, meant: str) -> None:
    answer = post(client, "/v1/chat/completions", {misspelt: 1})
    assert answer.status_code == 400
    assert f"did you mean '{meant}'?" in answer.json()["error"]["message"]


def test_a_misspelt_field_of_a_message_is_refused_by_its_place(client: TestClient) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "user", "content": "x", "nam": "y"}]
    error = post(client, "/v1/chat/completions", {"messages": messages}).json()["error"]
    assert error["param"] == "messages[1].nam"
    assert "did you mean 'name'?" in error["message"]


# Fields of other servers' APIs, and of products that add their own: none may be taken for a misspelling.
# fmt: off
OTHERS = (
    "max_new_tokens", "min_new_tokens", "top_a", "typical_p", "repeat_penalty", "reasoning", "thinking",
    "extra_body", "provider", "transforms", "route", "plugins", "usage", "n_predict", "mirostat", "grammar",
    "return_routed_experts", "data_parallel_rank", "bootstrap_host", "bootstrap_room", "rid", "input_ids",
    "input_embeds", "image_data", "logprob_start_len", "return_text_in_logprobs", "stream_interval", "vllm_xargs",
    "use_cache", "chat_template_content_format", "enable_thinking", "thinking_token_budget", "min_tokens_to_keep",
    "length_bonus", "num_ctx", "keep_alive", "options", "template", "system", "raw", "images",
    "format", "context", "suffix_tokens", "prompt_tokens", "cache_prompt", "id_slot", "t_max_predict_ms",
    "dry_multiplier", "xtc_probability", "nvext", "agent_hints",
)
# fmt: on


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_field_of_another_server_is_no_misspelling(shared_client: TestClient, path: str, name: str) -> None:
    answer = post(shared_client, path, {name: None})
    assert answer.status_code == 200
    assert answer.headers[HEADER] == f"1, {name}"


def test_the_log_names_a_field_once_and_not_without_end(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="numaserve.api"):
        for index in range(300):
            for _ in range(2):
                post(client, "/detokenize", {f"unheard_of_{index}": 1})
    named = [record.fields["field"] for record in caplog.records if hasattr(record, "fields")]  # type: ignore[attr-defined]
    assert named == [f"unheard_of_{index}" for index in range(256)]


def test_types_of_tools_are_named_as_fields_are(client: TestClient) -> None:
    strange = ["ä", "a\r\nX-Evil: 1", "x" * 65, "sp ace", "web_search"]
    tools = [{"type": kind} for kind in [*strange, *(f"kind_{index}" for index in range(100))]]
    count, *names = post(client, "/v1/chat/completions", {"tools": tools}).headers[HEADER].split(", ")
    assert int(count) == len(tools)
    assert names[:2] == ['"tools.sp ace"', "tools.web_search"]
    assert len(names) == 16


def test_types_of_tools_are_refused_where_unknown_fields_are(engine: FakeEngine) -> None:
    with TestClient(app_over(make_context(engine, strict_fields=True))) as strict:
        answer = post(strict, "/v1/chat/completions", {"tools": [{"type": "web_search"}]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools[0].type"
