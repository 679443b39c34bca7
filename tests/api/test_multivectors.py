"""Vectors of tokens by /v1/embeddings, over a stand-in whose vectors begin with 3 and 4 and hold the token's place."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.purpose import Embeds
from numaserve.server.scheduler.request import Pooling
from shared_apps import app_over
from starlette.testclient import TestClient

from tests.support.api_fakes import EMBEDDING_SIZE, FakeEngine, make_context
from tests.support.error_forms import error_message

SIZE = 8


def serving(engine: FakeEngine, size: int = SIZE) -> TestClient:
    settings = EmbeddingSettings(prompts={"query": "q: "}, normalize=False)
    purpose = Embeds(EMBEDDING_SIZE, tokens=size, settings=settings)
    return TestClient(app_over(make_context(engine, purpose=purpose)))


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[TestClient]:
    with serving(engine) as client:
        yield client


def data(client: TestClient, given: Any, **fields: Any) -> list[dict[str, Any]]:
    answer = client.post("/v1/embeddings", json={"input": given, "return_multivector": True, **fields})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 0
    found: list[dict[str, Any]] = body["data"]
    return found


def vectors(count: int, *, normalize: bool = True) -> np.ndarray:
    rows = np.array([[3, 4, *[place] * 6] for place in range(1, count + 1)], np.float64).reshape(count, SIZE)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalize else rows


def test_each_input_has_a_vector_of_every_token_after_the_first(client: TestClient, engine: FakeEngine) -> None:
    first, second, third = data(client, ["abc", "a", "x" * 90])
    assert [(each["object"], each["index"]) for each in (first, second, third)] == [
        ("embedding", 0),
        ("embedding", 1),
        ("embedding", 2),
    ]
    for item, count in ((first, 3), (second, 1), (third, 90)):
        assert set(item) == {"object", "index", "embeddings"}
        np.testing.assert_allclose(item["embeddings"], vectors(count), atol=1e-7)
    assert {request.pooling for request in engine.admitted} == {Pooling("tokens")}


def test_a_single_token_has_no_vectors(client: TestClient) -> None:
    assert data(client, [5]) == [{"object": "embedding", "index": 0, "embeddings": []}]


def test_a_request_may_take_the_lengths_as_they_are(client: TestClient) -> None:
    (item,) = data(client, "abc", normalize=False, prompt_name="query")
    np.testing.assert_array_equal(item["embeddings"], vectors(6, normalize=False))


def test_each_vector_has_the_form_of_an_embedding(client: TestClient) -> None:
    (item,) = data(client, "abc", encoding_format="base64")
    rows = [np.frombuffer(base64.b64decode(each), "<f4") for each in item["embeddings"]]
    np.testing.assert_allclose(rows, vectors(3), atol=1e-7)
    (item,) = data(client, "abc", embedding_type="ubinary")
    assert item["embeddings"] == [[255]] * 3


def test_without_the_field_there_is_one_embedding(client: TestClient, engine: FakeEngine) -> None:
    for fields in ({}, {"return_multivector": False}):
        answer = client.post("/v1/embeddings", json={"input": "a", **fields}).json()
        assert answer["data"][0]["embedding"] == [3, 4, 2, 2]
    assert {request.pooling for request in engine.admitted} == {Pooling("whole")}


@pytest.mark.parametrize(
    ("size", "fields", "words"),
    [
        (0, {}, "This model has no vectors of tokens. Leave 'return_multivector' out, or ask a model that has them"),
        (12, {"embedding_type": "binary"}, "The vectors of tokens have 12 dimensions"),
        (SIZE, {"dimensions": 2}, "vectors of tokens cannot be cut"),
    ],
)
def test_what_has_no_vectors_is_refused_before_anything_runs(
    engine: FakeEngine, size: int, fields: dict[str, Any], words: str
) -> None:
    with serving(engine, size) as client:
        answer = client.post("/v1/embeddings", json={"input": "a", "return_multivector": True} | fields)
    assert (answer.status_code, engine.admitted) == (400, [])
    assert words in error_message(answer)
