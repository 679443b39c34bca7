"""The bytes of an answer are bounded before anything is computed, on every route whose answer a request can enlarge."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from model_bodies import CLASSIFYING, GENERATING, JUDGING, POOLING, SPARSE, TEXTS
from numaserve.server.generation.answer_size import AnswerSize
from numaserve.server.generation.embedding import in_form
from numaserve.server.generation.embedding_settings import Form
from numaserve.server.generation.judge import Judge
from numaserve.server.generation.purpose import Classifies, Embeds, Generates
from numaserve.server.generation.sparse import SparseOutput
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import EMBEDDING_SIZE, FakeEngine, make_context
from tests.support.app_routes import operations
from tests.support.error_forms import error_message

KINDS: tuple[tuple[Mapping[str, dict[str, Any]], dict[str, Any]], ...] = (
    (GENERATING, {}),
    (TEXTS, {}),
    (POOLING, {"purpose": Embeds(EMBEDDING_SIZE)}),
    (SPARSE, {"purpose": Embeds(sparse=SparseOutput(1))}),
    (CLASSIFYING, {"purpose": Classifies(("a", "b", "c", "a name\n"), "none")}),
    (JUDGING, {"purpose": Generates(Judge(ord("n"), ord("y"))), "context_length": 600}),
)
BOUNDED = {path: (body, options) for bodies, options in KINDS for path, body in bodies.items()}
# The size of these answers follows from the server, or from what other bounds let a client store.
FIXED = {
    "/api/ps": "the model",
    "/api/tags": "the model",
    "/api/version": "a word",
    "/get_load": "numbers",
    "/get_model_info": "a description of the model",
    "/get_server_info": "numbers of the server",
    "/health": "a word",
    "/health_generate": "a word",
    "/livez": "a word",
    "/load": "numbers",
    "/machine": "numbers of the server",
    "/metrics": "numbers of the server",
    "/model_info": "a description of the model",
    "/readyz": "a word",
    "/server_info": "numbers of the server",
    "/tokenizer_info": "a description of the model",
    "/v1/loads": "numbers",
    "/v1/models": "the model",
    "/v1/models/{name}": "the model",
    "/v1/responses/{response_id}": "an answer that was bounded, and is stored within max_bytes_stored",
    "/v1/responses/{response_id}/input_items": "the input of a stored answer",
    "/version": "a word",
    "/abort_request": "a number",
    "/api/pull": "a word",
    "/api/show": "a description of the model",
    "/flush_cache": "a word",
    "/load_lora_adapter": "the adapters",
    "/unload_lora_adapter": "the adapters",
    "/v1/load_lora_adapter": "a word",
    "/v1/unload_lora_adapter": "a word",
    "/ping": "a word",
    "/reset_prefix_cache": "a word",
    "/v1/messages/count_tokens": "a number",
    "/v1/responses/input_tokens": "a number",
}


def test_every_route_has_a_bound_or_an_answer_of_fixed_size() -> None:
    assert {path for _, path in operations()} == BOUNDED.keys() | FIXED.keys()
    assert not BOUNDED.keys() & FIXED.keys()


def client_of(engine: FakeEngine, limits: dict[str, int], **options: Any) -> TestClient:
    context = make_context(engine, max_sequences=5, **options)
    return TestClient(app_over(replace(context, limits=replace(context.limits, **limits))))


@pytest.mark.parametrize("path", BOUNDED)
def test_an_answer_beyond_the_limit_is_refused_before_anything_is_computed(path: str) -> None:
    engine, (body, options) = FakeEngine(), BOUNDED[path]
    with client_of(engine, {"max_answer_bytes": 1}, **options) as client:
        answer = client.post(path, json=body)
    assert (answer.status_code, engine.admitted) == (400, []), answer.text
    assert "answer could take" in error_message(answer)
    assert "(limit 1)" in error_message(answer)


@pytest.mark.parametrize("path", sorted(BOUNDED.keys() - GENERATING.keys()))
def test_no_answer_is_larger_than_its_bound(path: str) -> None:
    engine, (body, options) = FakeEngine(), BOUNDED[path]
    with client_of(engine, {"max_answer_bytes": 1}, **options) as client:
        refused = error_message(client.post(path, json=body))
    bound = int(refused.split("could take ")[1].split()[0])
    for limit, status in ((bound - 1, 400), (bound, 200)):
        with client_of(FakeEngine(), {"max_answer_bytes": limit}, **options) as client:
            answer = client.post(path, json=body)
        assert answer.status_code == status
    assert len(answer.content) <= bound


@pytest.mark.parametrize("form", ["float", "base64", "binary", "ubinary"])
def test_no_number_is_longer_than_its_bound(form: Form) -> None:
    longest = np.full(64, np.float32(-1.1754942106924411e-38))
    size = AnswerSize.of_vectors(64, None, [form])
    assert len(json.dumps(in_form(longest, form), separators=(",", ":"))) <= size.item - 200
    assert size.kept_item == longest.nbytes


def test_vectors_that_no_client_may_leave_unread_are_refused_too() -> None:
    engine = FakeEngine()
    with client_of(engine, {"max_bytes_unread": 5 * 16}, purpose=Embeds(EMBEDDING_SIZE)) as client:
        body = {"input": ["a"] * 6, "encoding_format": "base64"}
        answer = client.post("/v1/embeddings", json=body)
        assert (answer.status_code, engine.admitted) == (400, [])
        assert "The vectors of the answer could take 96 bytes (limit 80)." in error_message(answer)
        assert client.post("/v1/embeddings", json=body | {"input": ["a"] * 5}).status_code == 200


def test_weights_of_tokens_are_bounded_by_the_tokens_and_not_by_the_vocabulary() -> None:
    limits = {"max_answer_bytes": 5000}
    with client_of(FakeEngine(), limits, purpose=Embeds(sparse=SparseOutput())) as client:
        assert client.post("/embed_sparse", json={"inputs": ["a"] * 3}).status_code == 200
        answer = client.post("/embed_sparse", json={"inputs": ["a" * 100]})
        assert (answer.status_code, "answer could take" in answer.text) == (400, True)
    with client_of(FakeEngine(), limits, purpose=Embeds(sparse=SparseOutput(1))) as client:
        assert client.post("/embed_sparse", json={"inputs": ["a"]}).status_code == 400


@pytest.mark.parametrize(
    "more", [{"n": 5}, {"logprobs": 5}, {"echo": True, "prompt": "a" * 150}, {"prompt": ["a"] * 5}]
)
def test_answers_alternatives_and_prompts_count(more: dict[str, Any]) -> None:
    engine, body = FakeEngine(), {"prompt": "a", "max_tokens": 20}
    with client_of(engine, {"max_answer_bytes": 1024 + 4000}) as client:
        assert client.post("/v1/completions", json=body).status_code == 200
        engine.admitted.clear()
        answer = client.post("/v1/completions", json=body | more)
    assert (answer.status_code, engine.admitted) == (400, []), answer.text
    assert "Request fewer output tokens, fewer answers or fewer log-probabilities." in error_message(answer)


def test_without_a_limit_of_its_own_a_request_has_the_tokens_that_its_answer_can_hold() -> None:
    engine, chat = FakeEngine(), {"messages": [{"role": "user", "content": "hi"}]}
    with client_of(engine, {"max_answer_bytes": 1024 + 4000}) as client:
        assert client.post("/v1/chat/completions", json=chat).status_code == 200
        assert client.post("/v1/chat/completions", json=chat | {"logprobs": True, "top_logprobs": 5}).status_code == 200
    alone, scored = (request.max_new_tokens for request in engine.admitted)
    assert 2 <= scored < alone < 60
