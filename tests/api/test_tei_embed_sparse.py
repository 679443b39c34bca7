"""POST /embed_sparse, over a stand-in whose vectors have 3 for token 1 and the number of tokens for token 3."""

from collections.abc import Iterator
from math import log1p
from typing import Any

import numpy as np
import pytest
from numaserve.server.engine.types import QueueFull
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.purpose import Embeds
from numaserve.server.generation.sparse import SparseOutput
from numaserve.server.scheduler.request import Pooling
from numaserve.workers.interface.vectors import SparseEntries
from shared_apps import app_over
from starlette.testclient import TestClient

from tests.support.api_fakes import BOS, CONTEXT, EMBEDDING_SIZE, LETTERS, MODEL, VOCAB, FakeEngine, make_context
from tests.support.error_forms import error_message

SETTINGS = EmbeddingSettings(prompts={"query": "q: "})


@pytest.fixture
def sparse(engine: FakeEngine) -> Iterator[TestClient]:
    context = make_context(engine, max_sequences=5, purpose=Embeds(sparse=SparseOutput(1), settings=SETTINGS))
    with TestClient(app_over(context), raise_server_exceptions=False) as client:
        yield client


def embed(client: TestClient, inputs: Any, **fields: Any) -> Any:
    answer = client.post("/embed_sparse", json={"inputs": inputs, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("inputs", "prompts"),
    [
        ("a", [[BOS, *b"a"]]),
        (["a", "bc"], [[BOS, *b"a"], [BOS, *b"bc"]]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        (["a"] * 12, [[BOS, *b"a"]] * 12),
    ],
)
def test_every_input_has_a_list_of_entries(
    sparse: TestClient, engine: FakeEngine, inputs: Any, prompts: list[list[int]]
) -> None:
    expected = [
        [{"index": 1, "value": pytest.approx(log1p(3))}, {"index": 3, "value": pytest.approx(log1p(len(prompt)))}]
        for prompt in prompts
    ]
    assert embed(sparse, inputs) == expected
    assert [request.prompt for request in engine.admitted] == prompts
    assert {request.pooling for request in engine.admitted} == {Pooling("sparse")}


def test_a_name_chooses_a_prompt_and_long_texts_are_cut(sparse: TestClient, engine: FakeEngine) -> None:
    embed(sparse, "a", prompt_name="query")
    embed(sparse, LETTERS, truncate=True)
    embed(sparse, LETTERS, truncate=True, truncation_direction="Left")
    cut = LETTERS[: CONTEXT - 1], LETTERS[-CONTEXT + 1 :]
    assert [bytes(request.prompt[1:]).decode() for request in engine.admitted] == ["q: a", *cut]


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"inputs": LETTERS}, "Validation", "maximum context length is 200 tokens"),
        ({"inputs": [[5], [VOCAB]]}, "Validation", f"token ids are below {VOCAB}"),
        ({"inputs": ["a", ""]}, "Empty", "'inputs[1]' is empty. Send a text."),
        ({"inputs": []}, "Validation", "Invalid value for 'inputs'"),
        ({}, "Validation", "Missing required field: inputs."),
        ({"inputs": "a", "prompt_name": "document"}, "Validation", "this model's prompts are 'query'"),
        ({"inputs": ["a"] * 8193}, "Validation", "at most 8192 items"),
    ],
)
def test_what_has_no_sparse_vector_is_refused_in_the_form_of_text_embeddings_inference(
    sparse: TestClient, engine: FakeEngine, fields: dict[str, Any], kind: str, words: str
) -> None:
    answer = sparse.post("/embed_sparse", json=fields)
    assert (answer.status_code, engine.admitted) == (400, [])
    assert words in error_message(answer)
    assert answer.json()["error_type"] == kind


def test_a_full_queue_has_a_kind_of_its_own(sparse: TestClient, engine: FakeEngine) -> None:
    engine.fail_after, engine.failure = 0, QueueFull("The queue is full.", 3)
    answer = sparse.post("/embed_sparse", json={"inputs": "a"})
    assert (answer.status_code, answer.json()["error_type"], answer.headers["retry-after"]) == (429, "Overloaded", "3")


@pytest.mark.parametrize("options", [{}, {"purpose": Embeds(EMBEDDING_SIZE)}])
def test_a_model_without_sparse_vectors_says_what_to_do(engine: FakeEngine, options: dict[str, Any]) -> None:
    with TestClient(app_over(make_context(engine, **options))) as client:
        answer = client.post("/embed_sparse", json={"inputs": "a"})
    assert (answer.status_code, engine.admitted) == (400, [])
    assert error_message(answer) == "This model has no sparse vectors. Ask a SPLADE model or BGE-M3."


def test_a_sparse_model_serves_nothing_else(sparse: TestClient, engine: FakeEngine) -> None:
    for path, body in (("/embed", {"inputs": "a"}), ("/v1/embeddings", {"input": "a"})):
        answer = sparse.post(path, json=body)
        assert (answer.status_code, "does not serve embeddings" in error_message(answer)) == (400, True)
    answer = sparse.post("/v1/completions", json={"prompt": "a"})
    assert answer.status_code == 400
    assert "serves sparse vectors and cannot generate text. Use /embed_sparse." in error_message(answer)
    capabilities = sparse.post("/api/show", json={"model": MODEL}).json()["capabilities"]
    assert (capabilities, engine.admitted) == ([], [])


def test_weights_are_logarithms_of_the_positive_values() -> None:
    encoded = SparseEntries.of_vector(np.array([0.5, 0, -2, 7], np.float32)).encoded()
    assert list(SparseOutput(1).weights(encoded)) == [(0, np.float32(log1p(0.5))), (3, np.float32(log1p(7)))]
    assert list(SparseOutput(2).weights(encoded)) == [
        (0, np.float32(log1p(log1p(0.5)))),
        (3, np.float32(log1p(log1p(7)))),
    ]
    assert list(SparseOutput(left_out=frozenset({0, 2})).weights(encoded)) == [(3, 7.0)]
    assert list(SparseOutput(1).weights(SparseEntries.of_vector(np.zeros(9, np.float32)).encoded())) == []
