"""POST /embed, over a stand-in whose embeddings begin with 3 and 4 and hold the number of tokens."""

from collections.abc import Iterator
from typing import Any

import pytest
from numaserve.server.engine.types import QueueFull
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.purpose import Embeds
from shared_apps import app_over
from starlette.testclient import TestClient

from tests.support.api_fakes import BOS, CONTEXT, EMBEDDING_SIZE, LETTERS, MODEL, VOCAB, FakeEngine, make_context
from tests.support.error_forms import error_message

SETTINGS = EmbeddingSettings(prompts={"query": "q: "}, normalize=False)


@pytest.fixture
def embedder(engine: FakeEngine) -> Iterator[TestClient]:
    context = make_context(engine, max_sequences=5, purpose=Embeds(EMBEDDING_SIZE, settings=SETTINGS))
    with TestClient(app_over(context), raise_server_exceptions=False) as client:
        yield client


def embed(client: TestClient, inputs: Any, **fields: Any) -> Any:
    answer = client.post("/embed", json={"inputs": inputs, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("inputs", "prompts"),
    [
        ("a", [[BOS, *b"a"]]),
        (["a", "bc"], [[BOS, *b"a"], [BOS, *b"bc"]]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
def test_inputs_come_alone_or_in_lists(
    embedder: TestClient, engine: FakeEngine, inputs: Any, prompts: list[list[int]]
) -> None:
    assert embed(embedder, inputs, dimensions=2) == [pytest.approx([0.6, 0.8])] * len(prompts)
    assert [request.prompt for request in engine.admitted] == prompts


@pytest.mark.parametrize(("fields", "scaled"), [({}, True), ({"normalize": True}, True), ({"normalize": False}, False)])
def test_vectors_are_scaled_unless_the_request_says_otherwise(
    embedder: TestClient, fields: dict[str, Any], scaled: bool
) -> None:
    assert embed(embedder, "a", dimensions=2, **fields) == [pytest.approx([0.6, 0.8] if scaled else [3, 4])]
    assert len(embed(embedder, "a", **fields)[0]) == EMBEDDING_SIZE


def test_a_name_chooses_a_prompt(embedder: TestClient, engine: FakeEngine) -> None:
    embed(embedder, ["a", "b"], prompt_name="query")
    assert [bytes(request.prompt[1:]) for request in engine.admitted] == [b"q: a", b"q: b"]


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, LETTERS[: CONTEXT - 1]),
        ({"truncation_direction": "Right"}, LETTERS[: CONTEXT - 1]),
        ({"truncation_direction": "Left"}, LETTERS[-CONTEXT + 1 :]),
        ({"truncation_direction": "left"}, LETTERS[-CONTEXT + 1 :]),
        ({"truncation_direction": "right"}, LETTERS[: CONTEXT - 1]),
    ],
)
def test_a_long_text_is_cut_on_request(
    embedder: TestClient, engine: FakeEngine, fields: dict[str, Any], kept: str
) -> None:
    embed(embedder, [LETTERS, "a"], truncate=True, **fields)
    assert [request.prompt for request in engine.admitted] == [[BOS, *kept.encode()], [BOS, *b"a"]]


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"inputs": LETTERS}, "Validation", "maximum context length is 200 tokens"),
        ({"inputs": LETTERS, "truncate": False, "truncation_direction": "Left"}, "Validation", "is 200 tokens"),
        ({"inputs": [[7] * (CONTEXT + 1)]}, "Validation", "maximum context length is 200 tokens"),
        ({"inputs": [[5], [VOCAB]]}, "Validation", f"token ids are below {VOCAB}"),
        ({"inputs": [[5], [-1]]}, "Validation", "Invalid value for 'inputs[1][0]'"),
        ({"inputs": ""}, "Empty", "'inputs[0]' is empty. Send a text."),
        ({"inputs": ["a", ""]}, "Empty", "'inputs[1]' is empty. Send a text."),
        ({"inputs": []}, "Validation", "Invalid value for 'inputs'"),
        ({"inputs": [[]]}, "Validation", "Invalid value for 'inputs[0]'"),
        ({"inputs": ["a", [5]]}, "Validation", "expected a string"),
        ({}, "Validation", "Missing required field: inputs."),
        ({"inputs": "a", "prompt_name": "document"}, "Validation", "this model's prompts are 'query'"),
        ({"inputs": [5], "prompt_name": "query"}, "Validation", "'inputs' has token ids"),
        ({"inputs": "a", "dimensions": EMBEDDING_SIZE + 1}, "Validation", "'dimensions' is 5"),
        ({"inputs": "a", "dimensions": 0}, "Validation", "Invalid value for 'dimensions'"),
        ({"inputs": "a", "truncation_direction": "LEFT"}, "Validation", "'Left', 'Right', 'left' or 'right'"),
        ({"inputs": ["a"] * 8193}, "Validation", "at most 8192 items"),
    ],
)
def test_what_cannot_be_embedded_is_refused_in_the_form_of_text_embeddings_inference(
    embedder: TestClient, engine: FakeEngine, fields: dict[str, Any], kind: str, words: str
) -> None:
    answer = embedder.post("/embed", json=fields)
    assert (answer.status_code, engine.admitted) == (400, [])
    assert words in error_message(answer)
    assert answer.json()["error_type"] == kind


def test_a_body_may_have_sixteen_times_the_tokens_of_the_context(engine: FakeEngine) -> None:
    context = make_context(engine, purpose=Embeds(EMBEDDING_SIZE), max_body_bytes=2**22)
    with TestClient(app_over(context)) as client:
        answers = [
            client.post("/embed", json={"inputs": ["a" * 6000] * count, "truncate": True}) for count in (200, 210)
        ]
    assert [answer.status_code for answer in answers] == [200, 413]
    assert "the limit for this model's context length" in error_message(answers[1])
    assert len(engine.admitted) == 200


def test_a_failure_and_a_full_queue_have_kinds_of_their_own(
    embedder: TestClient, engine: FakeEngine, client: TestClient
) -> None:
    engine.fail_after = 0
    answer = embedder.post("/embed", json={"inputs": "a"})
    assert (answer.status_code, answer.json()["error_type"]) == (500, "Backend")
    engine.failure = QueueFull("The queue is full.", 3)
    answer = embedder.post("/embed", json={"inputs": "a"})
    assert (answer.status_code, answer.json()["error_type"]) == (429, "Overloaded")
    assert answer.headers["retry-after"] == "3"
    engine.ready = False
    answer = embedder.post("/embed", json={"inputs": "a"})
    assert (answer.status_code, answer.json()["error_type"]) == (503, "Unhealthy")


def test_a_model_may_be_named(embedder: TestClient, client: TestClient) -> None:
    assert embed(embedder, "a", model=MODEL)
    answer = embedder.post("/embed", json={"inputs": "a", "model": "other"})
    assert answer.status_code == 404
    assert error_message(answer).startswith("The model 'other' does not exist.")
    answer = client.post("/embed", json={"inputs": "a"})
    assert (answer.status_code, "'--task embed'" in error_message(answer)) == (400, True)


@pytest.mark.parametrize("path", ["/embeddings", "/embedded", "/v2/embeddings"])
def test_paths_that_only_begin_alike_have_errors_in_openai_s_form(embedder: TestClient, path: str) -> None:
    answer = embedder.post(path, json={})
    assert (answer.status_code, list(answer.json()["error"])) == (404, ["message", "type", "param", "code"])
