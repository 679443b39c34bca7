"""Inputs of embeddings that are truncated: they keep the tokens that the tokenizer's own truncation keeps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import tokenizers
from numaserve.server.generation.purpose import Embeds
from numaserve.server.text.work import PIECE_CHARACTERS
from numaserve.server.tokenizer import Tokenizer
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import CONTEXT, EMBEDDING_SIZE, MODEL, FakeEngine, make_context
from tests.support.tokenizer_builders import (
    byte_level_backend,
    sentencepiece_backend,
    unigram_backend,
    wordpiece_backend,
)

BACKENDS = {
    "two special tokens": wordpiece_backend,
    "two special tokens, unigrams": unigram_backend,
    "one special token": sentencepiece_backend,
    "no special token": byte_level_backend,
}
TEXTS = {
    "words": "the quick brown fox jumps over the lazy dog " * 20,
    "special tokens at the end": "the quick fox " + "[SEP] </s> " * 300,
    "special tokens at the start": "[CLS] <s> " * 300 + "the quick fox",
    "several pieces": "the quick brown fox jumps over a lazy dog " * (2 * PIECE_CHARACTERS // 40),
}
SIDES = {"left": "start", "right": "end"}


def made_of(backend: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(backend, eos_token_ids=frozenset(), bos_token_id=None, eos_token_id=None, chat_template=None)


@contextmanager
def serving(engine: FakeEngine, backend: tokenizers.Tokenizer) -> Iterator[TestClient]:
    context = replace(make_context(engine, purpose=Embeds(EMBEDDING_SIZE)), tokenizer=made_of(backend))
    with TestClient(app_over(context), raise_server_exceptions=False) as client:
        yield client


def truncated(backend: tokenizers.Tokenizer, text: str, limit: int, side: str) -> list[int]:
    """Return what the library keeps, as transformers calls it."""
    own = tokenizers.Tokenizer.from_str(backend.to_str())
    own.enable_truncation(limit, direction=side)
    return list(own.encode(text).ids)


def embed(client: TestClient, given: Any, **fields: Any) -> Any:
    answer = client.post("/v1/embeddings", json={"input": given, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("build", BACKENDS.values(), ids=BACKENDS)
def test_the_tokens_are_those_of_the_tokenizer_s_own_truncation(
    engine: FakeEngine, build: Callable[[], tokenizers.Tokenizer], text: str, side: str
) -> None:
    backend, limits = build(), [3, 4, 57, CONTEXT]
    expected = [truncated(backend, TEXTS[text], limit, side) for limit in limits]
    assert [len(tokens) for tokens in expected] == limits
    with serving(engine, backend) as client:
        for limit, tokens in zip(limits, expected, strict=True):
            answer = embed(client, TEXTS[text], truncate_prompt_tokens=limit, truncation_side=side)
            assert engine.admitted[-1].prompt == tokens
            assert answer["usage"]["prompt_tokens"] == limit


@pytest.mark.parametrize(
    "fields", [{"truncate": True}, {"truncate_prompt_tokens": -1}, {"truncate_prompt_tokens": CONTEXT + 1}]
)
def test_an_input_is_cut_at_its_end_to_the_context_length(engine: FakeEngine, fields: dict[str, Any]) -> None:
    backend = wordpiece_backend()
    with serving(engine, backend) as client:
        embed(client, [TEXTS["words"], "the fox"], **fields)
    assert engine.admitted[0].prompt == truncated(backend, TEXTS["words"], CONTEXT, "right")
    assert engine.admitted[1].prompt == backend.encode("the fox").ids


def test_an_input_that_fits_is_not_cut(engine: FakeEngine) -> None:
    backend = wordpiece_backend()
    tokens = backend.encode("the quick fox").ids
    with serving(engine, backend) as client:
        for side in SIDES:
            embed(client, "the quick fox", truncate_prompt_tokens=len(tokens), truncation_side=side)
    assert [request.prompt for request in engine.admitted] == [tokens] * 2


def test_token_ids_are_cut_as_they_are(engine: FakeEngine) -> None:
    ids = [5 + number % 50 for number in range(2 * CONTEXT)]
    with serving(engine, wordpiece_backend()) as client:
        embed(client, [ids, [7]], truncate_prompt_tokens=4)
        embed(client, ids, truncate_prompt_tokens=4, truncation_side="left")
        embed(client, ids, truncate=True)
    assert [request.prompt for request in engine.admitted] == [ids[:4], [7], ids[-4:], ids[:CONTEXT]]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"truncate_prompt_tokens": 2}, "limit_too_small", "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 0}, "conflicting_fields", "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "invalid_value", "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 5, "truncate": False}, "conflicting_fields", "truncate"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "middle"}, "invalid_value", "truncation_side"),
        ({"truncation_side": "left"}, "context_length_exceeded", "input"),
        ({"truncate": False}, "context_length_exceeded", "input"),
    ],
)
def test_what_cannot_be_truncated_is_refused(engine: FakeEngine, fields: dict[str, Any], code: str, param: str) -> None:
    with serving(engine, wordpiece_backend()) as client:
        answer = client.post("/v1/embeddings", json={"input": TEXTS["words"], **fields})
    assert (answer.status_code, engine.admitted) == (400, [])
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (code, param)


def test_a_token_id_that_would_be_cut_off_must_be_in_the_vocabulary(engine: FakeEngine) -> None:
    with serving(engine, wordpiece_backend()) as client:
        answer = client.post("/v1/embeddings", json={"input": [5, 6, 10**6], "truncate_prompt_tokens": 2})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "token_unknown")


def test_ollama_s_texts_that_end_in_special_tokens_are_cut(engine: FakeEngine) -> None:
    backend = wordpiece_backend()
    text = TEXTS["special tokens at the end"]
    with serving(engine, backend) as client:
        assert client.post("/api/embed", json={"model": MODEL, "input": text}).status_code == 200
    assert engine.admitted[0].prompt == truncated(backend, text, CONTEXT, "right")
