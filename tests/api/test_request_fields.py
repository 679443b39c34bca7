import json
from typing import Any

import pytest
from numaserve.workers.interface.protocol import SamplingParams
from starlette.testclient import TestClient

from tests.support.api_fakes import EOS, MODEL, VOCAB, FakeEngine

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
BOTH = (CHAT, TEXT)
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    TEXT: {"model": MODEL, "prompt": "hi"},
}


def post(client: TestClient, path: str, fields: dict[str, Any]) -> Any:
    # By hand: httpx refuses to send NaN, which a hostile client does not.
    content = json.dumps({**BODIES[path], **fields})
    return client.post(path, content=content, headers={"Content-Type": "application/json"})


IN_RANGE: list[tuple[str, object]] = [
    ("temperature", 0),
    ("temperature", 2.0),
    ("top_p", 0),
    ("top_p", 1),
    ("top_k", -1),
    ("top_k", 2**31 - 1),
    ("min_p", 1),
    ("repetition_penalty", 0.01),
    ("presence_penalty", -2),
    ("frequency_penalty", 2),
    ("seed", -(2**63)),
    ("seed", 2**63 - 1),
    ("n", 128),
    ("stop", "x"),
    ("stop", ["x"] * 32),
    ("stop", []),
    ("stop_token_ids", [VOCAB - 1]),
    ("logit_bias", {"0": -100, str(VOCAB - 1): 100}),
    ("ignore_eos", True),
    ("min_tokens", 3),
    ("max_tokens", 1),
    ("skip_special_tokens", False),
    ("cache_salt", "tenant"),
    ("priority", -1000),
    ("priority", 1000),
    ("user", "someone"),
    ("metadata", {"a": "b"}),
    ("safety_identifier", "x"),
    ("prompt_cache_key", "x"),
    ("stream", False),
]
NULLABLE = sorted({name for name, _ in IN_RANGE} | {"stream_options", "logprobs"})

NOT_NUMBERS: tuple[object, ...] = (float("nan"), float("inf"), float("-inf"), 10**400, -(10**400), "1", True, [1], {})
NOT_INTEGERS: tuple[object, ...] = (-(2**63) - 1, 2**63, 10**400, 1.5, float("nan"), "1", True, [1])
OUT_OF_RANGE: list[tuple[str, object]] = [
    *(
        (name, value)
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        for value in (-2.1, 101, *NOT_NUMBERS)
    ),
    *(
        (name, value)
        for name in ("n", "max_tokens", "min_tokens", "top_k", "seed", "priority")
        for value in NOT_INTEGERS
    ),
    ("n", 0),
    ("n", 129),
    ("max_tokens", -1),
    ("min_tokens", -1),
    ("top_k", -2),
    ("priority", -1001),
    ("priority", 1001),
    ("stop", ""),
    ("stop", ["x", ""]),
    ("stop", ["x"] * 33),
    ("stop", "x" * 1025),
    ("stop", 1),
    ("stop_token_ids", [VOCAB]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", ["1"]),
    ("stop_token_ids", [1] * 257),
    ("logit_bias", {str(VOCAB): 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"one": 1}),
    ("logit_bias", {"1\n": 1}),
    ("logit_bias", {"9" * 5000: 1}),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"1": float("nan")}),
    ("logit_bias", {str(i): 0 for i in range(1025)}),
    ("logit_bias", [1]),
    ("ignore_eos", 1),
    ("skip_special_tokens", "no"),
    ("cache_salt", "x" * 257),
    ("user", "x" * 1025),
    ("user", 7),
    ("stream", "yes"),
    ("model", 7),
    ("stream_options", {"include_usage": "yes"}),
    ("stream_options", {"unknown": True}),
    ("stream_options", {"include_usage": True}),  # without a stream
]


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(("name", "value"), IN_RANGE)
def test_a_value_in_its_range_is_served(renewed_client: TestClient, path: str, name: str, value: object) -> None:
    assert post(renewed_client, path, {name: value}).status_code == 200


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("name", NULLABLE)
def test_null_is_the_default(renewed_client: TestClient, path: str, name: str) -> None:
    assert post(renewed_client, path, {name: None}).status_code == 200


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_a_value_out_of_its_range_is_refused_by_name(
    renewed_client: TestClient, renewed_engine: FakeEngine, path: str, name: str, value: object
) -> None:
    answer = post(renewed_client, path, {name: value})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"].split("[")[0].split(".")[0] == name
    assert name in error["message"]
    assert renewed_engine.admitted == []


UNSUPPORTED: list[tuple[str, str, object]] = [
    *((path, "stop", "\ud800") for path in BOTH),
    *((path, "guided_regex", 7) for path in BOTH),
    *((path, "logits_processors", ["os.system"]) for path in BOTH),
    *((path, "structured_outputs", {"whitespace_pattern": " "}) for path in BOTH),
    *((path, "return_hidden_states", True) for path in BOTH),
    (CHAT, "chat_template", "{{ 1 }}"),
    (CHAT, "tools", [{"type": "function"}]),
    (CHAT, "tools", [{"type": "functions"}]),
    (CHAT, "tools", [{"type": "function", "function": {"name": "a\nb"}}]),
    (CHAT, "tools", [{"type": "function", "function": {"name": "f"}}] * 2),
    (CHAT, "tool_choice", "required"),
    (CHAT, "functions", [{}]),
    (CHAT, "function_call", {"name": "f"}),
    (CHAT, "response_format", {"type": "json_schema"}),
    (CHAT, "modalities", ["text", "audio"]),
    (CHAT, "audio", {"voice": "x"}),
    (CHAT, "reasoning_effort", "endless"),
    (CHAT, "verbosity", "shy"),
    (CHAT, "web_search_options", {}),
    (CHAT, "store", 0),
    (CHAT, "max_tokens", 0),
    (CHAT, "max_completion_tokens", 0),
    (CHAT, "logprobs", 1),
    (CHAT, "top_logprobs", 3),  # without logprobs
    (CHAT, "messages", []),
    (CHAT, "messages", [{"role": "user"}]),
    (CHAT, "messages", [{"role": "user", "content": None}]),
    (CHAT, "messages", [{"role": "user", "content": []}]),
    (CHAT, "messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}]),
    (CHAT, "messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}]),
    (CHAT, "messages", [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]),
    (CHAT, "messages", [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]),
    (CHAT, "messages", [{"role": "user", "content": "x", "tool_calls": [CALL]}]),
    (CHAT, "messages", [{"role": "assistant", "content": "x", "prefix": True}]),
    (CHAT, "messages", [{"role": "user", "content": [{"type": "text", "text": 1}]}]),
    (CHAT, "messages", [{"role": "user", "content": "\ud800"}]),
    (TEXT, "best_of", 2),
    (TEXT, "suffix", "x"),
    (TEXT, "logprobs", 21),
    (TEXT, "logprobs", True),
    (TEXT, "prompt", []),
    (TEXT, "prompt", [[]]),
    (TEXT, "prompt", None),
    (TEXT, "prompt", {}),
    (TEXT, "prompt", "\ud800"),
    (TEXT, "prompt", ["x", 1]),
    (TEXT, "prompt", [1, "x"]),
    (TEXT, "prompt", [True]),
    (TEXT, "prompt", [-1]),
    (TEXT, "prompt", [[1], [1.5]]),
    (TEXT, "prompt", [[1], "x"]),
    (TEXT, "prompt", [10**400]),
]


@pytest.mark.parametrize(("path", "name", "value"), UNSUPPORTED)
def test_what_is_not_supported_is_refused_by_name(
    renewed_client: TestClient, renewed_engine: FakeEngine, path: str, name: str, value: object
) -> None:
    answer = post(renewed_client, path, {name: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].split("[")[0].split(".")[0] == name
    assert renewed_engine.admitted == []


NEUTRAL: list[tuple[str, dict[str, object]]] = [
    (CHAT, {"store": True, "service_tier": "priority", "verbosity": "low", "reasoning_effort": "max"}),
    *((path, {"no_stop_trim": False, "return_hidden_states": False, "regex": None}) for path in BOTH),
    *((path, {"separate_reasoning": True, "stream_reasoning": True, "include_reasoning": True}) for path in BOTH),
    (CHAT, {"continue_final_message": False, "ignore_eos": False, "skip_special_tokens": True, "echo": False}),
    (CHAT, {"tools": []}),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"}),
    (CHAT, {"tool_choice": "auto"}),
    (CHAT, {"functions": [], "function_call": "none"}),
    (CHAT, {"parallel_tool_calls": True}),
    (CHAT, {"response_format": {"type": "text"}}),
    (CHAT, {"modalities": ["text"]}),
    (CHAT, {"service_tier": "auto", "store": False, "verbosity": "medium", "reasoning_effort": None}),
    (CHAT, {"logprobs": True, "top_logprobs": 20}),
    (CHAT, {"chat_template_kwargs": {}}),
    (CHAT, {"max_tokens": 3, "max_completion_tokens": 3}),
    (TEXT, {"best_of": 1}),
    (TEXT, {"best_of": 3, "n": 3}),
    (TEXT, {"suffix": ""}),
    (TEXT, {"logprobs": 20}),
    (TEXT, {"max_tokens": 0}),
    (TEXT, {"echo": False}),
]


@pytest.mark.parametrize(("path", "fields"), NEUTRAL)
def test_neutral_values_of_unsupported_fields_are_taken(
    renewed_client: TestClient, path: str, fields: dict[str, object]
) -> None:
    assert post(renewed_client, path, fields).status_code == 200


def test_an_error_names_the_place_inside_a_list(renewed_client: TestClient) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "user", "content": 5}]
    error = post(renewed_client, CHAT, {"messages": messages}).json()["error"]
    assert error["param"] == "messages[1].content"


def test_two_limits_that_differ_are_refused(renewed_client: TestClient) -> None:
    answer = post(renewed_client, CHAT, {"max_tokens": 3, "max_completion_tokens": 4})
    assert answer.json()["error"]["param"] == "max_tokens"


def test_a_minimum_above_the_maximum_is_refused(renewed_client: TestClient) -> None:
    answer = post(renewed_client, TEXT, {"max_tokens": 3, "min_tokens": 4})
    assert answer.json()["error"]["param"] == "min_tokens"


def test_every_sampling_field_reaches_the_engine(renewed_client: TestClient, renewed_engine: FakeEngine) -> None:
    fields = {
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "seed": 9,
        "logit_bias": {"5": -100, "6": 1.5},
        "logprobs": 2,
        "min_tokens": 2,
        "stop_token_ids": [7],
        "stop": ["a", "b"],
        "cache_salt": "s",
        "skip_special_tokens": False,
        "max_tokens": 5,
    }
    assert post(renewed_client, TEXT, fields).status_code == 200
    request = renewed_engine.admitted[0]
    assert request.sampling == SamplingParams(
        temperature=0.5,
        top_k=4,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.4,
        seed=9,
        logit_bias={5: -100.0, 6: 1.5},
        logprobs=2,
        min_position=len(request.prompt) + 2,
        suppress=[7, EOS],
    )
    assert request.stop == ("a", "b")
    assert request.stop_token_ids == {7, EOS}
    assert (request.max_new_tokens, request.min_new_tokens) == (5, 2)
    assert request.cache_salt == "s"
    assert not request.skip_special_tokens


def test_defaults_are_neutral_and_the_seed_is_not_the_same_twice(
    renewed_client: TestClient, renewed_engine: FakeEngine
) -> None:
    post(renewed_client, TEXT, {"prompt": ["a", "a"]})
    first, second = (request.sampling for request in renewed_engine.admitted)
    assert first.seed != second.seed
    assert first == SamplingParams(seed=first.seed)


def test_a_temperature_next_to_zero_is_greedy(renewed_client: TestClient, renewed_engine: FakeEngine) -> None:
    post(renewed_client, TEXT, {"temperature": 1e-300})
    assert renewed_engine.admitted[0].sampling.temperature == 0.0


def test_a_top_p_of_zero_leaves_the_most_likely_token(renewed_client: TestClient, renewed_engine: FakeEngine) -> None:
    post(renewed_client, TEXT, {"top_p": 0})
    assert (renewed_engine.admitted[0].sampling.top_p, renewed_engine.admitted[0].sampling.top_k) == (1.0, 1)


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63 - 1])
def test_any_seed_becomes_one_that_is_not_negative(
    renewed_client: TestClient, renewed_engine: FakeEngine, seed: int
) -> None:
    post(renewed_client, TEXT, {"seed": seed, "n": 2})
    assert all(0 <= request.sampling.seed < 2**63 for request in renewed_engine.admitted)
    assert renewed_engine.admitted[0].sampling.seed != renewed_engine.admitted[1].sampling.seed


@pytest.mark.parametrize("path", BOTH)
def test_another_model_is_not_found(renewed_client: TestClient, path: str) -> None:
    answer = post(renewed_client, path, {"model": "other"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", BOTH)
def test_the_only_model_need_not_be_named(renewed_client: TestClient, path: str) -> None:
    assert post(renewed_client, path, {"model": None}).status_code == 200
