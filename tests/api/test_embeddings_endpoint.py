"""POST /v1/embeddings, over a stand-in whose embeddings begin with 3 and 4 and tell the number of tokens."""

import base64
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from numaserve.server.generation.purpose import Embeds
from numaserve.server.scheduler.request import Pooling
from shared_apps import app_over
from starlette.testclient import TestClient

from tests.support.api_fakes import BOS, CONTEXT, EMBEDDING_SIZE, MODEL, VOCAB, FakeEngine, make_context
from tests.support.error_forms import error_message


@pytest.fixture
def embedder(engine: FakeEngine) -> Iterator[TestClient]:
    context = make_context(engine, max_sequences=5, purpose=Embeds(EMBEDDING_SIZE))
    with TestClient(app_over(context), raise_server_exceptions=False) as client:
        yield client


def embed(client: TestClient, given: Any, **more: Any) -> Any:
    answer = client.post("/v1/embeddings", json={"input": given, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client: TestClient, **body: Any) -> tuple[str, str]:
    answer = client.post("/v1/embeddings", json=body)
    assert answer.status_code == 400
    return answer.json()["error"]["code"], answer.json()["error"]["param"]


def test_a_text_has_an_embedding_of_length_one_of_all_its_tokens(embedder: TestClient, engine: FakeEngine) -> None:
    answer = embed(embedder, "abc", model=MODEL)
    (item,) = answer["data"]
    length = math.sqrt(3**2 + 4**2 + 2 * 4**2)
    assert item["embedding"] == pytest.approx([3 / length, 4 / length, 4 / length, 4 / length])
    assert (answer["object"], item["object"], item["index"]) == ("list", "embedding", 0)
    assert (answer["model"], answer["usage"]) == (MODEL, {"prompt_tokens": 4, "total_tokens": 4})
    (request,) = engine.admitted
    assert (request.prompt, request.pooling, request.max_new_tokens) == ([BOS, *b"abc"], Pooling(), 0)


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        (["a", "bc"], [[BOS, *b"a"], [BOS, *b"bc"]]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
def test_texts_and_token_ids_come_alone_or_in_lists(
    embedder: TestClient, engine: FakeEngine, given: Any, prompts: list[list[int]]
) -> None:
    answer = embed(embedder, given)
    assert [request.prompt for request in engine.admitted] == prompts
    assert [item["index"] for item in answer["data"]] == list(range(len(prompts)))


def test_dimensions_are_cut_before_the_rest_is_scaled(embedder: TestClient) -> None:
    (item,) = embed(embedder, "abc", dimensions=2)["data"]
    assert item["embedding"] == pytest.approx([0.6, 0.8])
    (plain,) = embed(embedder, "abc", dimensions=3, normalize=False)["data"]
    assert plain["embedding"] == [3.0, 4.0, 4.0]


def test_base64_holds_the_same_numbers(embedder: TestClient) -> None:
    (numbers,), (encoded,) = (embed(embedder, "abc", encoding_format=each)["data"] for each in ("float", "base64"))
    found = np.frombuffer(base64.b64decode(encoded["embedding"]), "<f4")
    assert found.tolist() == numbers["embedding"]


def test_openai_s_client_decodes_the_base64_that_it_asks_for(embedder: TestClient) -> None:
    client = openai.OpenAI(base_url=f"{embedder.base_url}/v1", api_key="none", http_client=embedder)
    found = client.embeddings.create(model=MODEL, input=["a", "b"], dimensions=2)
    assert [item.embedding for item in found.data] == [pytest.approx([0.6, 0.8])] * 2
    assert found.usage.prompt_tokens == 4


def test_more_inputs_than_may_run_at_once_are_admitted_some_at_a_time(embedder: TestClient, engine: FakeEngine) -> None:
    inputs = [[1] * length for length in range(1, 24)]
    answer = embed(embedder, inputs, normalize=False)
    assert [item["embedding"][2] for item in answer["data"]] == list(range(1, 24))
    assert answer["usage"]["prompt_tokens"] == sum(range(1, 24))
    assert len(engine.admitted) == 23


def test_an_input_may_fill_the_context_but_not_more(embedder: TestClient) -> None:
    assert embed(embedder, [7] * CONTEXT)["usage"]["prompt_tokens"] == CONTEXT
    assert embed(embedder, "a" * (CONTEXT - 1))["usage"]["prompt_tokens"] == CONTEXT
    assert refused(embedder, input="a" * CONTEXT) == ("context_length_exceeded", "input")
    assert refused(embedder, input=[[7], [7] * (CONTEXT + 1)]) == ("context_length_exceeded", "input")


def test_what_cannot_be_is_refused(embedder: TestClient, engine: FakeEngine) -> None:
    assert refused(embedder, input="a", dimensions=EMBEDDING_SIZE + 1) == ("too_many_dimensions", "dimensions")
    assert refused(embedder, input=[VOCAB]) == ("token_unknown", "input")
    assert refused(embedder, input=[[5], [VOCAB]]) == ("token_unknown", "input")
    assert refused(embedder, input=[])[1] == "input"
    assert refused(embedder, input=[[]])[1] == "input[0]"
    assert refused(embedder, input="a", encoding_format="hex")[1] == "encoding_format"
    assert engine.admitted == []


def test_a_model_that_is_not_served_for_embeddings_says_so(client: TestClient, engine: FakeEngine) -> None:
    assert refused(client, input="a") == ("task_unsupported", "model")
    assert engine.admitted == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5}),
        ("/api/chat", {"messages": [{"role": "user", "content": "a"}]}),
        ("/api/generate", {"prompt": "a"}),
        ("/generate", {"text": "a"}),
    ],
)
def test_a_model_that_is_served_for_embeddings_writes_no_text(
    embedder: TestClient, engine: FakeEngine, path: str, body: dict[str, Any], stream: bool
) -> None:
    named = {} if path == "/generate" else {"model": MODEL}
    answer = embedder.post(path, json={**named, **body, "stream": stream})
    assert answer.status_code == 400
    assert error_message(answer) == "This model serves embeddings and cannot generate text. Use /v1/embeddings."
    info = embedder.get("/model_info").json()
    assert (info["is_generation"], info["task"]) == (False, "embed")
    assert engine.admitted == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
    ],
)
def test_a_model_that_is_served_for_embeddings_judges_no_documents(
    embedder: TestClient, path: str, body: dict[str, Any]
) -> None:
    answer = embedder.post(path, json={"model": MODEL, **body})
    assert answer.status_code == 400
    assert "--task score" in error_message(answer)


def test_another_model_is_not_found(embedder: TestClient) -> None:
    assert embedder.post("/v1/embeddings", json={"input": "a", "model": "other"}).status_code == 404


def test_a_failure_is_the_whole_request_s(embedder: TestClient, engine: FakeEngine) -> None:
    engine.fail_after = 0
    assert embedder.post("/v1/embeddings", json={"input": ["a", "b"]}).status_code == 500


def test_ollama_s_clients_get_the_same(embedder: TestClient, engine: FakeEngine) -> None:
    answer = embedder.post(
        "/api/embed", json={"model": f"{MODEL}:latest", "input": ["a", "bc"], "dimensions": 2}
    ).json()
    assert answer["embeddings"] == [pytest.approx([0.6, 0.8])] * 2
    assert (answer["model"], answer["prompt_eval_count"]) == (f"{MODEL}:latest", 5)
    assert embedder.post("/api/embed", json={"model": MODEL, "input": "a"}).json()["embeddings"][0][2:] != []
    assert embedder.post("/api/show", json={"model": MODEL}).json()["capabilities"] == ["embedding"]
    assert [request.pooling for request in engine.admitted] == [Pooling()] * 3


def test_ollama_s_clients_are_refused_in_ollama_s_form(client: TestClient, embedder: TestClient) -> None:
    answer = client.post("/api/embed", json={"model": MODEL, "input": "a"})
    assert (answer.status_code, list(answer.json())) == (400, ["error"])
    assert embedder.post("/api/embed", json={"model": "other", "input": "a"}).status_code == 404


def test_ollama_s_older_route_gives_one_embedding(embedder: TestClient, engine: FakeEngine) -> None:
    answer = embedder.post("/api/embeddings", json={"model": f"{MODEL}:latest", "prompt": "abc"})
    assert answer.json() == {"embedding": [3, 4, 4, 4]}
    assert engine.admitted[0].prompt == [BOS, *b"abc"]
    assert embedder.post("/api/embeddings", json={"model": "other", "prompt": "a"}).status_code == 404


@pytest.mark.parametrize("length", [CONTEXT, 3 * CONTEXT, 300 * CONTEXT])
def test_ollama_s_inputs_are_cut_to_what_fits(embedder: TestClient, engine: FakeEngine, length: int) -> None:
    body = {"model": MODEL, "input": ["a" * length, "b"]}
    assert embedder.post("/api/embed", json=body).status_code == 200
    assert [request.prompt for request in engine.admitted] == [[BOS, *b"a" * (CONTEXT - 1)], [BOS, *b"b"]]
    assert embedder.post("/api/embed", json={**body, "truncate": False}).status_code == 400
    assert embedder.post("/api/embeddings", json={"model": MODEL, "prompt": "a" * length}).status_code == 200
    assert engine.admitted[-1].prompt == engine.admitted[0].prompt


def test_sglang_s_probe_computes_an_embedding(embedder: TestClient, engine: FakeEngine) -> None:
    assert embedder.get("/health_generate").json() == {"status": "ok"}
    (request,) = engine.admitted
    assert (request.prompt, request.pooling, request.max_new_tokens) == ([0], Pooling(), 0)
    engine.fail_after = 0
    assert embedder.get("/health_generate").status_code == 500
