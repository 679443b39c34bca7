"""POST /rerank and /score over an encoder, whose logit is the first byte of the second text, counted from `m`."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from numaserve.server.engine.types import GenerationChunk
from numaserve.server.generation.purpose import Classifies
from numaserve.server.scheduler.request import Pooling, Request
from shared_apps import app_over
from starlette.testclient import TestClient

from tests.support.api_fakes import BOS, EOS, MODEL, FakeEngine, FakeStream, make_context

LENGTH = 40


class ScoringStream(FakeStream):
    async def __anext__(self) -> GenerationChunk:
        request = self._waiting[0].request if self._waiting else None
        chunk = await super().__anext__()
        assert request is not None and request.pooling is not None
        chunk.embedding = array("f", [request.prompt[request.pooling.second_text] - ord("m")]).tobytes()
        return chunk


class ScoringEngine(FakeEngine):
    def admit(self, requests: Sequence[Request]) -> FakeStream:
        self.admitted += requests
        return ScoringStream(self, requests)


@pytest.fixture
def engine() -> FakeEngine:
    return ScoringEngine()


def client_of(engine: FakeEngine, classifier: Classifies) -> TestClient:
    context = make_context(engine, purpose=classifier, context_length=LENGTH)
    return TestClient(app_over(context), raise_server_exceptions=False)


@pytest.fixture
def scoring(engine: FakeEngine) -> Iterator[TestClient]:
    with client_of(engine, Classifies(("LABEL_0",), "sigmoid")) as client:
        yield client


def post(client: TestClient, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client: TestClient, path: str, **body: Any) -> tuple[str, str]:
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    return answer.json()["error"]["code"], answer.json()["error"]["param"]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_a_pair_is_one_sequence_whose_second_text_is_of_another_type(scoring: TestClient, engine: FakeEngine) -> None:
    answer = post(scoring, "/v1/rerank", query="why", documents=["k", "n", "m"], model=MODEL)
    first = engine.admitted[0]
    assert (first.prompt, first.pooling) == ([BOS, *b"why", EOS, *b"k", EOS], Pooling(second_text=5))
    assert [each["index"] for each in answer["results"]] == [1, 2, 0]
    assert [each["relevance_score"] for each in answer["results"]] == [sigmoid(1), 0.5, sigmoid(-2)]
    assert answer["usage"]["prompt_tokens"] == 21


def test_scores_have_the_activation_of_the_model(engine: FakeEngine) -> None:
    with client_of(engine, Classifies(("LABEL_0",), "none")) as client:
        answer = post(client, "/v1/score", text_1="q", text_2=["p", "k"])
        assert [each["score"] for each in answer["data"]] == [3.0, -2.0]


@pytest.mark.parametrize(("raw", "scores"), [(None, [sigmoid(1), sigmoid(-2)]), (True, [1.0, -2.0])])
def test_texts_are_answered_as_by_text_embeddings_inference(
    engine: FakeEngine, raw: bool | None, scores: list[float]
) -> None:
    with client_of(engine, Classifies(("LABEL_0",), "none")) as client:
        answer = post(client, "/rerank", query="q", texts=["k", "n"], raw_scores=raw, return_text=True)
        assert answer == [
            {"index": 1, "score": scores[0], "text": "n"},
            {"index": 0, "score": scores[1], "text": "k"},
        ]


def test_the_longer_text_of_a_pair_is_cut_where_that_is_asked_for(scoring: TestClient, engine: FakeEngine) -> None:
    post(scoring, "/rerank", query="q" * 10, texts=["n" * 100, "n" * 27, "n" * 28], truncate=True)
    assert [len(each.prompt) for each in engine.admitted] == [LENGTH, LENGTH, LENGTH]
    assert engine.admitted[0].prompt == [BOS, *b"q" * 10, EOS, *b"n" * 27, EOS]
    assert refused(scoring, "/v1/rerank", query="q" * 10, texts=["n" * 28]) == ("context_length_exceeded", "texts")


def test_a_document_of_any_length_is_cut_to_its_limit(scoring: TestClient, engine: FakeEngine) -> None:
    post(scoring, "/v1/rerank", query="q", documents=["n" * 200_000], max_tokens_per_doc=3)
    assert engine.admitted[0].prompt == [BOS, *b"q", EOS, *b"n" * 3, EOS]
    assert refused(scoring, "/v1/rerank", query="q", documents=["n" * 200_000]) == (
        "context_length_exceeded",
        "documents",
    )


def test_cohere_cuts_without_being_asked(scoring: TestClient, engine: FakeEngine) -> None:
    post(scoring, "/v2/rerank", query="q" * 30, documents=["n" * 30])
    assert engine.admitted[0].prompt == [BOS, *b"q" * 18, EOS, *b"n" * 19, EOS]
    post(scoring, "/v2/rerank", query="q", documents=["n" * 30], max_tokens_per_doc=3)
    assert engine.admitted[1].prompt == [BOS, *b"q", EOS, *b"n" * 3, EOS]


@pytest.mark.parametrize(
    ("body", "blamed"),
    [
        ({"query": "q"}, "documents"),
        ({"query": "q", "texts": ["a"], "documents": ["a"]}, "documents"),
        ({"query": "q", "texts": ["a"], "top_n": 1}, "top_n"),
        ({"query": "q", "documents": ["a"], "raw_scores": True}, "raw_scores"),
        ({"query": "q", "documents": ["a"], "instruct": "i"}, "instruct"),
    ],
)
def test_a_request_has_one_format_and_no_instruction(
    scoring: TestClient, engine: FakeEngine, body: dict[str, Any], blamed: str
) -> None:
    answer = scoring.post("/v1/rerank", json=body)
    assert answer.status_code == 400
    assert (answer.json()["error"]["param"], engine.admitted) == (blamed, [])


def test_a_model_with_several_labels_ranks_nothing(engine: FakeEngine) -> None:
    with client_of(engine, Classifies(("a", "b"), "none")) as client:
        assert refused(client, "/v1/rerank", query="q", texts=["a"]) == ("task_unsupported", "model")


@pytest.mark.parametrize(("labels", "does"), [(1, "scores texts"), (2, "classifies texts")])
def test_text_is_not_generated(engine: FakeEngine, labels: int, does: str) -> None:
    with client_of(engine, Classifies(("a", "b")[:labels], "none")) as client:
        answer = client.post("/v1/completions", json={"prompt": "a"})
        assert answer.status_code == 400
        assert f"This model {does} and cannot generate text" in answer.text
        info = client.get("/model_info").json()
        assert (info["is_generation"], info["task"]) == (False, {1: "score", 2: "classify"}[labels])
        assert refused(client, "/v1/embeddings", input="a") == ("task_unsupported", "model")
