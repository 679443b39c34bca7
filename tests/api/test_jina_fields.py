"""Jina's fields of POST /v1/embeddings."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.purpose import Embeds
from shared_apps import app_over
from starlette.testclient import TestClient

from tests.support.api_fakes import BOS, EMBEDDING_SIZE, MODEL, FakeEngine, make_context

DIMENSIONS = 16


@pytest.fixture
def embedder(engine: FakeEngine) -> Iterator[TestClient]:
    engine.dimensions = DIMENSIONS
    with TestClient(app_over(make_context(engine, purpose=Embeds(DIMENSIONS)))) as client:
        yield client


def refused(client: TestClient, **fields: Any) -> tuple[str, str]:
    answer = client.post("/v1/embeddings", json={"input": "a", **fields})
    assert answer.status_code == 400
    return answer.json()["error"]["param"], answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("names", "task", "prompt"),
    [
        ({"retrieval.query": "r: ", "query": "q: "}, "retrieval.query", "r: "),
        ({"query": "q: ", "document": "d: "}, "retrieval.query", "q: "),
        ({"query": "q: ", "document": "d: "}, "retrieval.passage", "d: "),
        ({"STS": "s: "}, "text-matching", "s: "),
        ({"Clustering": "c: "}, "separation", "c: "),
        ({"query": "q: "}, "classification", ""),
        ({}, "retrieval.query", ""),
    ],
)
def test_a_task_chooses_the_model_s_prompt(engine: FakeEngine, names: dict[str, str], task: str, prompt: str) -> None:
    context = make_context(engine, purpose=Embeds(EMBEDDING_SIZE, settings=EmbeddingSettings(prompts=names)))
    with TestClient(app_over(context)) as client:
        assert client.post("/v1/embeddings", json={"input": "a", "task": task}).status_code == 200
    assert [request.prompt for request in engine.admitted] == [[BOS, *f"{prompt}a".encode()]]


def test_a_task_of_jina_finds_the_prompts_of_a_model_of_jina_by_other_names(engine: FakeEngine) -> None:
    settings = EmbeddingSettings(prompts={"retrieval.query": "q: ", "retrieval.passage": "p: "})
    with TestClient(app_over(make_context(engine, purpose=Embeds(EMBEDDING_SIZE, settings=settings)))) as client:
        for name in ("query", "search_query", "document", "passage", "search_document"):
            assert client.post("/v1/embeddings", json={"input": "a", "input_type": name}).status_code == 200
    assert [bytes(request.prompt[1:]) for request in engine.admitted] == [b"q: a"] * 2 + [b"p: a"] * 3


@pytest.mark.parametrize(
    "given", [[{"text": "a"}, {"text": "bc"}], [{"text": "a"}, "bc"], ["a", {"text": "bc", "image": None}]]
)
def test_inputs_may_be_objects(embedder: TestClient, engine: FakeEngine, given: Any) -> None:
    assert embedder.post("/v1/embeddings", json={"input": given}).status_code == 200
    assert [request.prompt for request in engine.admitted] == [[BOS, *b"a"], [BOS, *b"bc"]]


@pytest.mark.parametrize("given", [[{"text": 5}], [{"words": "a"}], [{"text": "a"}, [5]], {"text": None}])
def test_other_objects_are_refused(embedder: TestClient, engine: FakeEngine, given: Any) -> None:
    param, message = refused(embedder, input=given)
    assert param == "input"
    assert "expected a string" in message
    assert engine.admitted == []


@pytest.mark.parametrize(("form", "expected"), [("float", [0.6, 0.8]), ("ubinary", [255, 255]), ("binary", [127, 127])])
def test_an_embedding_has_the_type_that_is_asked_for(embedder: TestClient, form: str, expected: list[float]) -> None:
    cut = 2 if form == "float" else DIMENSIONS
    body = {"input": "a", "embedding_type": form, "dimensions": cut, "encoding_format": "base64"}
    (item,) = embedder.post("/v1/embeddings", json=body).json()["data"]
    assert item["embedding"] == pytest.approx(expected)


def test_openai_s_client_leaves_bits_as_they_are(embedder: TestClient) -> None:
    client = openai.OpenAI(base_url=f"{embedder.base_url}/v1", api_key="none", http_client=embedder)
    found = client.embeddings.create(model=MODEL, input="a", extra_body={"embedding_type": "ubinary"})
    assert found.data[0].embedding == [255, 255]


@pytest.mark.parametrize(("fields", "scaled"), [({"normalized": True}, True), ({"normalized": False}, False)])
def test_normalized_is_another_name(embedder: TestClient, fields: dict[str, Any], scaled: bool) -> None:
    (item,) = embedder.post("/v1/embeddings", json={"input": "a", "dimensions": 2, **fields}).json()["data"]
    assert item["embedding"] == pytest.approx([0.6, 0.8] if scaled else [3, 4])


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"late_chunking": True}, "late_chunking", "this field is not supported"),
        (
            {"return_multivector": True},
            "return_multivector",
            "has no vectors of tokens. Leave 'return_mult",
        ),
        ({"return_multivector": True, "dimensions": 2}, "dimensions", "vectors of tokens cannot be cut"),
        ({"task": "retrieval"}, "task", "'retrieval.query', 'retrieval.passage'"),
        ({"task": "separation", "input_type": "query"}, "input_type", "'input_type' and 'task' both choose a prompt"),
        ({"task": "separation", "input": [5]}, "task", "'input' has token ids"),
        ({"normalize": True, "normalized": False}, "normalized", "contradict"),
        ({"embedding_type": "int8"}, "embedding_type", "'float', 'base64', 'binary' or 'ubinary'"),
        ({"embedding_type": "binary", "dimensions": 12}, "dimensions", "Send a multiple of 8"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    embedder: TestClient, engine: FakeEngine, fields: dict[str, Any], param: str, words: str
) -> None:
    blamed, message = refused(embedder, **fields)
    assert (blamed, words in message) == (param, True), message
    assert engine.admitted == []
