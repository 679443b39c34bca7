import json
from dataclasses import replace
from typing import Any

import pytest
from numaserve.server.app.application import create_app
from shared_apps import app_over
from starlette.testclient import TestClient

from tests.support.api_fakes import BOS, CONTEXT, MODEL, REPLY, ByteTokenizer, FakeEngine, make_context


def complete(client: TestClient, prompt: Any = "ab", **fields: Any) -> Any:
    return client.post("/v1/completions", json={"model": MODEL, "prompt": prompt, **fields})


def events(text: str) -> list[Any]:
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]


def test_an_answer_has_exactly_openai_s_shape(client: TestClient) -> None:
    answer = complete(client, max_tokens=3).json()
    assert answer.pop("id").startswith("cmpl-")
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "object": "text_completion",
        "model": MODEL,
        "system_fingerprint": "numaserve-1.2.3",
        "choices": [{"index": 0, "text": "Hé", "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


@pytest.mark.parametrize(
    ("prompt", "admitted"),
    [
        ("ab", [[BOS, 97, 98]]),
        (["a", "b"], [[BOS, 97], [BOS, 98]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
)
def test_a_prompt_comes_in_four_forms(
    client: TestClient, engine: FakeEngine, prompt: Any, admitted: list[list[int]]
) -> None:
    answer = complete(client, prompt).json()
    assert [request.prompt for request in engine.admitted] == admitted
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(admitted)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, admitted))


def test_samples_of_one_prompt_stand_together(client: TestClient, engine: FakeEngine) -> None:
    complete(client, ["a", "b"], n=2, seed=3)
    assert [(r.prompt[-1], r.sampling.seed) for r in engine.admitted] == [(97, 3), (97, 4), (98, 3), (98, 4)]


def test_sixteen_tokens_are_the_default_and_fewer_when_the_context_ends(client: TestClient, engine: FakeEngine) -> None:
    complete(client)
    complete(client, [1] * (CONTEXT - 5))
    assert [request.max_new_tokens for request in engine.admitted] == [16, 5]


def test_echo_with_logprobs_scores_the_prompt(client: TestClient, engine: FakeEngine) -> None:
    answer = complete(client, "ab", echo=True, logprobs=1, max_tokens=0).json()
    assert engine.admitted[0].prompt_logprobs
    choice = answer["choices"][0]
    assert choice["text"] == "ab"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] == {
        "tokens": ["<s>", "a", "b"],
        "token_logprobs": [None, -0.5, -0.5],
        "top_logprobs": [None, {"a": -0.5}, {"b": -0.5}],
        "text_offset": [0, 0, 1],
    }
    assert answer["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_the_prompt_before_the_output(client: TestClient, stream: bool) -> None:
    answer = complete(client, [[97], [98]], echo=True, logprobs=0, max_tokens=3, stream=stream)
    found = {0: "", 1: ""}
    offsets: dict[int, list[int]] = {0: [], 1: []}
    for body in events(answer.text) if stream else [answer.json()]:
        for choice in body["choices"]:
            found[choice["index"]] += choice["text"]
            offsets[choice["index"]] += choice["logprobs"]["text_offset"]
    assert found == {0: "aHé", 1: "bHé"}
    assert offsets == {0: [0, 1, 2, 2], 1: [0, 1, 2, 2]}


@pytest.mark.parametrize(("skip", "text", "offsets"), [(True, "a", [0, 0, 1]), (False, "<s>a", [0, 3, 4])])
def test_special_tokens_take_room_only_where_they_are_written(
    client: TestClient, skip: bool, text: str, offsets: list[int]
) -> None:
    answer = complete(client, [BOS, 97], echo=True, logprobs=0, max_tokens=1, skip_special_tokens=skip).json()
    assert answer["choices"][0]["text"] == text + "H"
    assert answer["choices"][0]["logprobs"]["text_offset"] == offsets


def test_a_token_that_is_no_whole_character_is_written_as_bytes(client: TestClient) -> None:
    choice = complete(client, logprobs=0, max_tokens=3).json()["choices"][0]
    assert choice["logprobs"]["tokens"] == ["H", "bytes:\\xc3", "bytes:\\xa9"]


def test_a_stream_carries_the_whole_text_and_then_usage(client: TestClient) -> None:
    chunks = events(complete(client, stream=True, stream_options={"include_usage": True}, max_tokens=50).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == REPLY
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == 3


def test_more_sequences_than_the_queue_could_hold_are_refused(engine: FakeEngine) -> None:
    with TestClient(create_app(make_context(engine, max_sequences=4))) as client:
        answer = complete(client, ["a"] * 5)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert engine.admitted == []


def test_a_prompt_too_long_is_refused_with_openai_s_code(client: TestClient) -> None:
    answer = complete(client, [1] * CONTEXT)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert answer.json()["error"]["param"] == "prompt"


def test_token_ids_outside_the_vocabulary_are_refused(client: TestClient, engine: FakeEngine) -> None:
    assert complete(client, [260]).json()["error"]["param"] == "prompt"
    assert engine.admitted == []


@pytest.mark.parametrize("field", ["include_stop_str_in_output", "no_stop_trim"])
def test_a_stop_string_may_be_a_part_of_the_answer(client: TestClient, engine: FakeEngine, field: str) -> None:
    for value in (True, False, None):
        assert client.post("/v1/completions", json={"prompt": "x", "stop": "y", field: value}).status_code == 200
    assert [request.include_stop for request in engine.admitted] == [True, False, False]


class FillingTokenizer(ByteTokenizer):
    """One with tokens around what is to be filled in, in the places of those for turns."""

    _MARKERS = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if text in self._MARKERS:
            return [250 + self._MARKERS.index(text)]
        return super().encode(text, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {}), ("/api/generate", {"model": MODEL, "stream": False})]
)
def test_a_suffix_follows_the_answer_where_the_tokenizer_has_tokens_for_it(
    engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    fields = {"prompt": "ab", "suffix": "cd", **body}
    context = make_context(engine)
    answer = TestClient(app_over(context)).post(path, json=fields)
    assert (answer.status_code, engine.admitted) == (400, [])
    client = TestClient(app_over(replace(context, tokenizer=FillingTokenizer())))
    assert client.post(path, json=fields).status_code == 200
    assert engine.admitted[0].prompt == [BOS, 250, *b"ab", 251, *b"cd", 252]
    shown = client.post("/api/show", json={"model": MODEL}).json()
    assert shown["capabilities"] == ["completion", "insert"]


@pytest.mark.parametrize("fields", [{"prompt": [1]}, {"prompt": ["a", "b"]}, {"prompt": "a", "echo": True}])
def test_a_suffix_needs_one_text_before_it(client: TestClient, fields: dict[str, Any]) -> None:
    answer = client.post("/v1/completions", json={"suffix": "x", **fields})
    assert answer.json()["error"]["param"] == "suffix"


@pytest.mark.parametrize(
    "fields", [{"logprobs": 0}, {"prompt_logprobs": 0}, {"n": 2}, {"echo": True}, {"prompt": ["ab", "cd"]}]
)
def test_one_answer_without_log_probabilities_is_resumed(client: TestClient, fields: dict[str, Any]) -> None:
    check_resume_is_refused(client, fields)


def test_what_is_resumed_is_not_looked_through_for_ever(client: TestClient) -> None:
    stops = [f"{number:1000}" for number in range(32)]
    check_resume_is_refused(client, {"stop": stops, "resume_token_ids": [97] * 140})
    assert complete(client, prompt="ab", stop=stops, resume_token_ids=[97], max_tokens=4).status_code == 200


def check_resume_is_refused(client: TestClient, fields: dict[str, Any]) -> None:
    answer = complete(client, **{"prompt": "ab", "resume_token_ids": [97]} | fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "resume_token_ids"
