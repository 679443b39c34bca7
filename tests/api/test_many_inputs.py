"""Requests with more inputs than the queue takes at once: a place for all of them, before any is read."""

from typing import Any

import pytest
from numaserve.server.engine.types import QueueFull
from numaserve.server.generation.judge import Judge
from numaserve.server.generation.purpose import Classifies, Embeds, Generates
from numaserve.server.generation.sparse import SparseOutput
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import EMBEDDING_SIZE, MODEL, FakeEngine, make_context
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.error_forms import error_message

TEXTS = ["a", "b", "c"]
EMBEDDER = {"purpose": Embeds(EMBEDDING_SIZE)}
CLASSIFIER = {"purpose": Classifies(("a", "b", "c", "d"), "none")}
SCORER = {"purpose": Classifies(("a",), "none")}
JUDGE = {"purpose": Generates(Judge(ord("n"), ord("y"))), "context_length": 600}
MANY: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("/v1/embeddings", {"input": TEXTS}, EMBEDDER),
    ("/api/embed", {"input": TEXTS, "model": MODEL}, EMBEDDER),
    ("/v2/embed", {"texts": TEXTS, "model": MODEL}, EMBEDDER),
    ("/embed", {"inputs": TEXTS}, EMBEDDER),
    ("/embed_sparse", {"inputs": TEXTS}, {"purpose": Embeds(sparse=SparseOutput(1))}),
    ("/predict", {"inputs": [["a"], ["b", "c"], ["d"]]}, CLASSIFIER),
    ("/v1/rerank", {"query": "q", "documents": TEXTS}, SCORER),
    ("/v1/rerank", {"query": "q", "documents": TEXTS}, JUDGE),
    ("/v1/score", {"text_1": "q", "text_2": TEXTS}, JUDGE),
]


@pytest.mark.parametrize(("path", "body", "options"), MANY)
def test_many_inputs_are_refused_before_they_are_read_and_admitted_whole(
    path: str, body: dict[str, Any], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, read = FakeEngine(), list[str]()
    encode = ByteTokenizer.encode

    def noted(tokenizer: ByteTokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
        read.append(text)
        return encode(tokenizer, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(ByteTokenizer, "encode", noted)
    with TestClient(app_over(make_context(engine, max_sequences=5, **options))) as client:
        engine.refusal = QueueFull("The server is full.", 7)
        answer = client.post(path, json=body)
        assert (answer.status_code, answer.headers["retry-after"], read) == (429, "7", [])
        engine.refusal = None
        assert client.post(path, json=body).status_code == 200
    assert (len(engine.admitted), engine.places) == (3, 0)


@pytest.mark.parametrize(("path", "field"), [("/v2/embed", "texts"), ("/embed", "inputs")])
def test_a_body_may_have_sixteen_times_the_tokens_of_the_context(path: str, field: str) -> None:
    engine = FakeEngine()
    with TestClient(app_over(make_context(engine, max_body_bytes=2**22, **EMBEDDER))) as client:
        bodies = ({field: ["a" * 6000] * count, "truncate": {"/embed": True}.get(path)} for count in (200, 210))
        answers = [client.post(path, json=body) for body in bodies]
    assert [answer.status_code for answer in answers] == [200, 413]
    assert "the limit for this model's context length" in error_message(answers[1])
    assert len(engine.admitted) == 200
