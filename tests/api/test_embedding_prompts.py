"""The prompts of an embedding model, under the names that models give them."""

import pytest
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.purpose import Embeds
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import EMBEDDING_SIZE, FakeEngine, make_context
from tests.support.byte_tokenizer import BOS

JINA = {"retrieval.query": "q: ", "retrieval.passage": "p: "}


@pytest.mark.parametrize(
    ("names", "fields", "prompt"),
    [
        ({"search_query": "s: ", "query": "q: "}, {"input_type": "search_query"}, "s: "),
        ({"search_query": "s: "}, {"input_type": "query"}, "s: "),
        ({"passage": "p: "}, {"input_type": "document"}, "p: "),
        ({"corpus": "k: "}, {"input_type": "passage"}, "k: "),
        ({"search_document": "x: "}, {"input_type": "document"}, "x: "),
        *((JINA, {"input_type": name}, "q: ") for name in ("query", "search_query")),
        *((JINA, {"input_type": name}, "p: ") for name in ("document", "passage", "search_document")),
        ({"retrieval.query": "r: ", "query": "q: "}, {"task": "retrieval.query"}, "r: "),
        ({"query": "q: ", "document": "d: "}, {"task": "retrieval.query"}, "q: "),
        ({"query": "q: ", "document": "d: "}, {"task": "retrieval.passage"}, "d: "),
        ({"STS": "s: "}, {"task": "text-matching"}, "s: "),
        ({"Clustering": "c: "}, {"task": "separation"}, "c: "),
        ({"query": "q: "}, {"task": "classification"}, ""),
        ({}, {"task": "retrieval.query"}, ""),
    ],
)
def test_a_type_or_a_task_finds_the_model_s_prompt(
    engine: FakeEngine, names: dict[str, str], fields: dict[str, str], prompt: str
) -> None:
    context = make_context(engine, purpose=Embeds(EMBEDDING_SIZE, settings=EmbeddingSettings(prompts=names)))
    with TestClient(app_over(context)) as client:
        assert client.post("/v1/embeddings", json={"input": "a", **fields}).status_code == 200
    assert [request.prompt for request in engine.admitted] == [[BOS, *f"{prompt}a".encode()]]
