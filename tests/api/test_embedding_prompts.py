"""The prompts and the scaling of an embedding model, on every route for embeddings."""

from typing import Any

import pytest
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.purpose import Embeds
from shared_apps import app_over
from starlette.testclient import TestClient

from tests.support.api_fakes import BOS, EMBEDDING_SIZE, MODEL, FakeEngine, make_context

PROMPTS = {"query": "q: ", "document": "d: ", "Clustering": "c: ", "plain": ""}


def client_of(engine: FakeEngine, **settings: Any) -> TestClient:
    context = make_context(engine, purpose=Embeds(EMBEDDING_SIZE, settings=EmbeddingSettings(**settings)))
    return TestClient(app_over(context), raise_server_exceptions=False)


def read(engine: FakeEngine, given: Any, settings: dict[str, Any], **fields: Any) -> list[str]:
    """Return the texts that the model reads."""
    with client_of(engine, **settings) as client:
        answer = client.post("/v1/embeddings", json={"input": given, **fields})
    assert answer.status_code == 200, answer.text
    prompts = [request.prompt for request in engine.admitted]
    assert all(prompt[0] == BOS for prompt in prompts)
    return [bytes(prompt[1:]).decode() for prompt in prompts]


def refused(engine: FakeEngine, prompts: dict[str, str], **body: Any) -> dict[str, Any]:
    with client_of(engine, prompts=prompts) as client:
        answer = client.post("/v1/embeddings", json=body)
    assert (answer.status_code, engine.admitted) == (400, [])
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize(
    ("default", "fields", "prompt"),
    [
        (None, {}, ""),
        ("document", {}, "d: "),
        (None, {"prompt_name": "query"}, "q: "),
        ("document", {"prompt_name": "plain"}, ""),
        (None, {"input_type": "query"}, "q: "),
        (None, {"input_type": "search_query"}, "q: "),
        (None, {"input_type": "document"}, "d: "),
        (None, {"input_type": "passage"}, "d: "),
        (None, {"input_type": "search_document"}, "d: "),
        (None, {"input_type": "clustering"}, "c: "),
        (None, {"input_type": "classification"}, ""),
        ("query", {"input_type": "classification"}, "q: "),
    ],
)
def test_the_prompt_of_the_request_or_the_model_precedes_each_text(
    engine: FakeEngine, default: str | None, fields: dict[str, str], prompt: str
) -> None:
    settings = {"prompts": PROMPTS, "default_prompt": default}
    assert read(engine, ["a", "Bc"], settings, **fields) == [f"{prompt}a", f"{prompt}Bc"]


@pytest.mark.parametrize(
    ("names", "input_type", "prompt"),
    [
        ({"search_query": "s: ", "query": "q: "}, "search_query", "s: "),
        ({"search_query": "s: "}, "query", "s: "),
        ({"passage": "p: "}, "document", "p: "),
        ({"corpus": "k: "}, "passage", "k: "),
        ({"search_document": "x: "}, "document", "x: "),
    ],
)
def test_a_type_finds_the_prompt_under_the_names_that_models_use(
    engine: FakeEngine, names: dict[str, str], input_type: str, prompt: str
) -> None:
    assert read(engine, "a", {"prompts": names}, input_type=input_type) == [f"{prompt}a"]


def test_a_model_without_prompts_takes_every_type(engine: FakeEngine) -> None:
    assert read(engine, "Ab", {}, input_type="query") == ["Ab"]


def test_texts_are_lowercased_with_their_prompt_where_the_model_was_trained_so(engine: FakeEngine) -> None:
    settings = {"prompts": {"query": "Query: "}, "lowercase": True}
    assert read(engine, "ÄbC", settings, prompt_name="query") == ["query: äbc"]


def test_an_unknown_name_is_refused_with_the_names_that_there_are(engine: FakeEngine) -> None:
    error = refused(engine, PROMPTS, input="a", prompt_name="passage")
    assert (error["code"], error["param"]) == ("prompt_unknown", "prompt_name")
    assert "'passage', but this model's prompts are 'query', 'document', 'Clustering', 'plain'." in error["message"]


def test_a_name_is_refused_where_there_are_no_prompts(engine: FakeEngine) -> None:
    error = refused(engine, {}, input="a", prompt_name="query")
    assert (error["code"], "this model has no prompts. Leave 'prompt_name' out." in error["message"]) == (
        "prompt_unknown",
        True,
    )


def test_an_unknown_type_is_refused_with_the_types_that_there_are(engine: FakeEngine) -> None:
    error = refused(engine, PROMPTS, input="a", input_type="image")
    assert error["param"] == "input_type"
    assert "'query', 'document'" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": "a", "prompt_name": "query", "input_type": "query"}, "prompt_name"),
        ({"input": [5, 6], "prompt_name": "query"}, "prompt_name"),
        ({"input": [[5, 6]], "input_type": "query"}, "input_type"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(engine: FakeEngine, fields: dict[str, Any], param: str) -> None:
    error = refused(engine, PROMPTS, **fields)
    assert (error["code"], error["param"]) == ("conflicting_fields", param)


def test_token_ids_are_embedded_without_the_default_prompt(engine: FakeEngine) -> None:
    with client_of(engine, prompts=PROMPTS, default_prompt="query") as client:
        assert client.post("/v1/embeddings", json={"input": [5, 6]}).status_code == 200
    assert [request.prompt for request in engine.admitted] == [[5, 6]]


def test_the_prompt_counts_in_the_usage_and_in_the_context(engine: FakeEngine) -> None:
    with client_of(engine, prompts={"query": "q" * 300}) as client:
        assert client.post("/v1/embeddings", json={"input": "a", "prompt_name": "query"}).status_code == 400
    with client_of(engine, prompts=PROMPTS) as client:
        answer = client.post("/v1/embeddings", json={"input": "a", "prompt_name": "query"})
    assert answer.json()["usage"]["prompt_tokens"] == 5


@pytest.mark.parametrize(
    ("model", "asked", "scaled"),
    [(True, None, True), (True, False, False), (False, None, False), (False, True, True)],
)
def test_vectors_are_scaled_as_the_model_or_the_request_says(
    engine: FakeEngine, model: bool, asked: bool | None, scaled: bool
) -> None:
    with client_of(engine, normalize=model) as client:
        answer = client.post("/v1/embeddings", json={"input": "a", "dimensions": 2, "normalize": asked})
    expected = [0.6, 0.8] if scaled else [3, 4]
    assert answer.json()["data"][0]["embedding"] == pytest.approx(expected)


def test_ollama_s_routes_use_the_default_prompt(engine: FakeEngine) -> None:
    with client_of(engine, prompts=PROMPTS, default_prompt="query", normalize=False) as client:
        answer = client.post("/api/embed", json={"model": MODEL, "input": ["a"], "dimensions": 2})
        assert client.post("/api/embeddings", json={"model": MODEL, "prompt": "b"}).status_code == 200
    assert [request.prompt for request in engine.admitted] == [[BOS, *b"q: a"], [BOS, *b"q: b"]]
    assert answer.json()["embeddings"] == [pytest.approx([0.6, 0.8])]  # Ollama scales all vectors
