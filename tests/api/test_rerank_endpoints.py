"""POST /v1/rerank and /v1/score, over a stand-in that judges a document by its first byte."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from numaserve.server.engine.types import GenerationChunk
from numaserve.server.generation.judge import AFTER, BEFORE, DEFAULT_INSTRUCT, Judge
from numaserve.server.generation.purpose import Generates
from numaserve.server.scheduler.request import Request
from shared_apps import app_over
from starlette.testclient import TestClient

from tests.support.api_fakes import MODEL, FakeEngine, FakeStream, make_context
from tests.support.error_forms import error_message

NO, YES = ord("n"), ord("y")
DOCUMENT = b"<Document>: "


class JudgingStream(FakeStream):
    """Says that yes is twice as likely as no with each letter that a document's first is behind `a`."""

    async def __anext__(self) -> GenerationChunk:
        prompt = bytes(self._waiting[0].request.prompt) if self._waiting else b""
        chunk = await super().__anext__()
        behind = prompt[prompt.index(DOCUMENT) + len(DOCUMENT)] - ord("a")
        chunk.token_logprobs = [[-9.0, -9.0 + behind * math.log(2)]]
        return chunk


class JudgingEngine(FakeEngine):
    def admit(self, requests: Sequence[Request]) -> FakeStream:
        self.admitted += requests
        return JudgingStream(self, requests)


@pytest.fixture
def engine() -> FakeEngine:
    return JudgingEngine()


@pytest.fixture
def judging(engine: FakeEngine) -> Iterator[TestClient]:
    context = make_context(engine, max_sequences=4, purpose=Generates(Judge(NO, YES)), context_length=600)
    with TestClient(app_over(context), raise_server_exceptions=False) as client:
        yield client


def post(client: TestClient, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def prompt_of(instruct: str, query: str, document: str) -> bytes:
    return f"{BEFORE}<Instruct>: {instruct}\n<Query>: {query}\n<Document>: {document}{AFTER}".encode()


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_come_in_the_order_of_their_scores(judging: TestClient, path: str) -> None:
    answer = post(judging, path, model=MODEL, query="q", documents=["b", {"text": "d"}, "a", "c"])
    assert [(each["index"], each["document"]["text"]) for each in answer["results"]] == [
        (1, "d"),
        (3, "c"),
        (0, "b"),
        (2, "a"),
    ]
    assert [each["relevance_score"] for each in answer["results"]] == pytest.approx([8 / 9, 4 / 5, 2 / 3, 1 / 2])
    assert answer["model"] == MODEL


def test_a_model_is_asked_as_its_authors_do_and_for_its_two_tokens(judging: TestClient, engine: FakeEngine) -> None:
    answer = post(judging, "/v1/rerank", query="why", documents=["because"])
    (request,) = engine.admitted
    assert bytes(request.prompt) == prompt_of(DEFAULT_INSTRUCT, "why", "because")
    assert (request.sampling.token_ids_logprob, request.max_new_tokens) == ([NO, YES], 1)
    assert answer["usage"] == {"prompt_tokens": len(request.prompt), "total_tokens": len(request.prompt)}


def test_an_instruct_stands_in_place_of_the_usual_one(judging: TestClient, engine: FakeEngine) -> None:
    post(judging, "/v1/score", text_1="why", text_2="because", instruct="Judge.")
    assert [bytes(each.prompt) for each in engine.admitted] == [prompt_of("Judge.", "why", "because")]


def test_top_n_and_return_documents_make_an_answer_shorter(judging: TestClient) -> None:
    answer = post(judging, "/v1/rerank", query="q", documents=["a", "c", "b"], top_n=2, return_documents=False)
    assert [each["index"] for each in answer["results"]] == [1, 2]
    assert all("document" not in each for each in answer["results"])


def test_a_long_document_is_cut_where_that_is_asked_for(judging: TestClient, engine: FakeEngine) -> None:
    post(judging, "/v1/rerank", query="q", documents=["b" * 1000], max_tokens_per_doc=5)
    assert bytes(engine.admitted[0].prompt) == prompt_of(DEFAULT_INSTRUCT, "q", "bbbbb")
    answer = judging.post("/v1/rerank", json={"query": "q", "documents": ["b" * 1000]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert answer.json()["error"]["param"] == "documents"


FAR_TOO_LONG = "b" * 200_000  # more characters than 600 tokens can have


@pytest.mark.parametrize(
    ("path", "body", "kept"),
    [
        ("/rerank", {"texts": [FAR_TOO_LONG], "truncate": True}, 600 - 1),  # the answer is one token
        ("/v2/rerank", {"documents": [FAR_TOO_LONG]}, 600 - 1),
    ],
)
def test_a_text_of_any_length_is_cut_to_the_context(
    judging: TestClient, engine: FakeEngine, path: str, body: dict[str, Any], kept: int
) -> None:
    post(judging, path, query="q", **body)
    (request,) = engine.admitted
    assert len(request.prompt) == kept
    assert bytes(request.prompt).endswith(b"bbb" + AFTER.encode())


def test_a_document_of_any_length_is_cut_to_its_limit(judging: TestClient, engine: FakeEngine) -> None:
    post(judging, "/v1/rerank", query="q", documents=[FAR_TOO_LONG], max_tokens_per_doc=5)
    assert bytes(engine.admitted[0].prompt) == prompt_of(DEFAULT_INSTRUCT, "q", "bbbbb")
    for body in ({"query": "q", "documents": [FAR_TOO_LONG]}, {"query": FAR_TOO_LONG, "documents": ["b"]}):
        limit = {"max_tokens_per_doc": 5} if body["query"] != "q" else {}
        answer = judging.post("/v1/rerank", json=body | limit)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
def test_scores_are_of_one_query_and_documents_or_of_pairs(
    judging: TestClient, engine: FakeEngine, path: str, names: tuple[str, str]
) -> None:
    of_one = post(judging, path, **dict(zip(names, ("q", ["a", "b"]), strict=True)))
    assert [each["score"] for each in of_one["data"]] == pytest.approx([1 / 2, 2 / 3])
    assert [(each["index"], each["object"]) for each in of_one["data"]] == [(0, "score"), (1, "score")]
    of_pairs = post(judging, path, **dict(zip(names, (["q", "r"], ["b", "a"]), strict=True)))
    assert [each["score"] for each in of_pairs["data"]] == pytest.approx([2 / 3, 1 / 2])
    assert b"<Query>: r\n<Document>: a" in bytes(engine.admitted[3].prompt)


@pytest.mark.parametrize(
    "body",
    [
        {"text_1": ["q", "r"], "text_2": ["a", "b", "c"]},
        {"text_1": "q"},
        {"text_1": "q", "queries": "q", "text_2": "a"},
    ],
)
def test_texts_that_make_no_pairs_are_refused(judging: TestClient, engine: FakeEngine, body: dict[str, Any]) -> None:
    assert judging.post("/v1/score", json=body).status_code == 400
    assert engine.admitted == []


def test_a_model_that_is_no_judge_says_so(client: TestClient, engine: FakeEngine) -> None:
    for path, body in (
        ("/v1/rerank", {"query": "q", "documents": ["a"]}),
        ("/v1/score", {"text_1": "q", "text_2": "a"}),
    ):
        answer = client.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "task_unsupported")
    assert engine.admitted == []


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
@pytest.mark.parametrize("body", [b"{", b"{}", b'{"query": "x", "documents": []}'])
def test_a_reranking_that_fails_is_answered_in_the_form_of_its_api(client: TestClient, path: str, body: bytes) -> None:
    answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert error_message(answer)
    assert set(answer.json()) == {"/v1/rerank": {"error"}, "/v2/rerank": {"id", "message"}}.get(
        path, {"error", "error_type"}
    )
