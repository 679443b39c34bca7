import json
from typing import Any

import pytest
from numaserve.workers.interface.protocol import SamplingParams
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, FakeEngine
from tests.support.byte_tokenizer import VOCAB

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
BOTH = (CHAT, TEXT)
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


def test_defaults_are_neutral_and_the_seed_is_not_the_same_twice(
    renewed_client: TestClient, renewed_engine: FakeEngine
) -> None:
    post(renewed_client, TEXT, {"prompt": ["a", "a"]})
    first, second = (request.sampling for request in renewed_engine.admitted)
    assert first.seed != second.seed
    assert first == SamplingParams(seed=first.seed)


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63 - 1])
def test_any_seed_becomes_one_that_is_not_negative(
    renewed_client: TestClient, renewed_engine: FakeEngine, seed: int
) -> None:
    post(renewed_client, TEXT, {"seed": seed, "n": 2})
    assert all(0 <= request.sampling.seed < 2**63 for request in renewed_engine.admitted)
    assert renewed_engine.admitted[0].sampling.seed != renewed_engine.admitted[1].sampling.seed
