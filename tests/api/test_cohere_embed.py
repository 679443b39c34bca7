"""POST /v2/embed, over a stand-in whose embeddings begin with 3 and 4 and hold the number of tokens."""

import base64
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.purpose import Embeds
from shared_apps import app_over
from starlette.testclient import TestClient

from tests.support.api_fakes import BOS, CONTEXT, LETTERS, MODEL, FakeEngine, make_context
from tests.support.error_forms import error_message

DIMENSIONS = 8
SETTINGS = EmbeddingSettings(prompts={"query": "q: ", "document": "d: "})


@pytest.fixture
def embedder(engine: FakeEngine) -> Iterator[TestClient]:
    engine.dimensions = DIMENSIONS
    context = make_context(engine, max_sequences=5, purpose=Embeds(DIMENSIONS, settings=SETTINGS))
    with TestClient(app_over(context), raise_server_exceptions=False) as client:
        yield client


def embed(client: TestClient, texts: list[str], **fields: Any) -> Any:
    answer = client.post("/v2/embed", json={"model": MODEL, "texts": texts, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_texts_have_embeddings_of_numbers(embedder: TestClient, engine: FakeEngine) -> None:
    answer = embed(embedder, ["a", "bc"], output_dimension=2)
    assert answer.pop("id")
    assert answer.pop("embeddings") == {"float": [pytest.approx([0.6, 0.8])] * 2}
    meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 5}}
    assert answer == {"texts": ["a", "bc"], "meta": meta}
    assert [request.prompt for request in engine.admitted] == [[BOS, *b"a"], [BOS, *b"bc"]]
    assert all(request.pooling for request in engine.admitted)


def test_all_dimensions_are_returned_unless_fewer_are_asked_for(embedder: TestClient) -> None:
    length = math.sqrt(3**2 + 4**2 + 6 * 2**2)
    expected = [3 / length, 4 / length, *[2 / length] * 6]
    assert embed(embedder, ["a"])["embeddings"]["float"] == [pytest.approx(expected)]


def test_each_type_of_embedding_is_returned_once(embedder: TestClient) -> None:
    found = embed(embedder, ["a", "b"], embedding_types=["ubinary", "binary", "base64", "float", "binary"])
    embeddings = found["embeddings"]
    assert list(embeddings) == ["ubinary", "binary", "base64", "float"]
    assert (embeddings["ubinary"], embeddings["binary"]) == ([[255]] * 2, [[127]] * 2)
    numbers = [np.frombuffer(base64.b64decode(each), "<f4").tolist() for each in embeddings["base64"]]
    assert numbers == embeddings["float"]


@pytest.mark.parametrize(
    ("kind", "prompt"),
    [("search_query", b"q: "), ("search_document", b"d: "), ("classification", b""), (None, b"")],
)
def test_the_type_of_the_input_chooses_the_model_s_prompt(
    embedder: TestClient, engine: FakeEngine, kind: str | None, prompt: bytes
) -> None:
    assert embed(embedder, ["a"], input_type=kind)["texts"] == ["a"]
    assert engine.admitted[0].prompt == [BOS, *prompt, *b"a"]


def test_inputs_may_be_objects_with_text(embedder: TestClient, engine: FakeEngine) -> None:
    inputs = [{"content": [{"type": "text", "text": text}]} for text in ("a", "bc")]
    answer = embedder.post("/v2/embed", json={"model": MODEL, "inputs": inputs, "input_type": "search_query"})
    assert answer.json()["texts"] == ["a", "bc"]
    assert [bytes(request.prompt[1:]) for request in engine.admitted] == [b"q: a", b"q: bc"]


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, LETTERS[: CONTEXT - 1]),
        ({"truncate": "END"}, LETTERS[: CONTEXT - 1]),
        ({"truncate": "START"}, LETTERS[-CONTEXT + 1 :]),
        ({"max_tokens": 5}, LETTERS[:4]),
        ({"max_tokens": 5, "truncate": "START"}, LETTERS[-4:]),
        ({"max_tokens": 9 * CONTEXT}, LETTERS[: CONTEXT - 1]),
    ],
)
def test_a_long_text_is_cut_on_the_side_that_is_asked_for(
    embedder: TestClient, engine: FakeEngine, fields: dict[str, Any], kept: str
) -> None:
    answer = embed(embedder, [LETTERS], **fields)
    assert engine.admitted[0].prompt == [BOS, *kept.encode()]
    assert answer["texts"] == [LETTERS]
    assert answer["meta"]["billed_units"]["input_tokens"] == len(kept) + 1


def test_a_text_of_the_most_tokens_is_not_refused(embedder: TestClient) -> None:
    assert embed(embedder, ["abcd"], truncate="NONE", max_tokens=5)["meta"]["billed_units"]["input_tokens"] == 5


IMAGE = "data:image/png;base64,AA=="
PART = {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"texts": [LETTERS], "truncate": "NONE"}, "maximum context length is 200 tokens"),
        ({"texts": ["a" * 300 * CONTEXT], "truncate": "NONE"}, "maximum context length is 200 tokens"),
        ({"texts": ["abcde"], "truncate": "NONE", "max_tokens": 5}, "'max_tokens' is 5, but the input has 6 tokens."),
        ({"texts": ["abc"], "max_tokens": 1}, "'max_tokens' is 1, but the tokenizer adds 1 special tokens"),
        ({"texts": ["abc"], "max_tokens": 0}, "Invalid value for 'max_tokens'"),
        ({"texts": []}, "Invalid value for 'texts'"),
        ({"texts": ["a", ""]}, "'texts[1]' is empty. Send a text."),
        ({"texts": "a"}, "Invalid value for 'texts'"),
        ({"texts": [[5]]}, "Invalid value for 'texts[0]'"),
        ({"texts": None}, "exactly one of 'texts' and 'inputs' is needed"),
        ({"texts": ["a"], "inputs": [{"content": [PART]}]}, "exactly one of 'texts' and 'inputs' is needed"),
        ({"texts": ["a"], "output_dimension": 9}, "'output_dimension' is 9, but this model's embeddings have 8"),
        (
            {"texts": ["a"], "output_dimension": 4, "embedding_types": ["binary"]},
            "a multiple of 8 as 'output_dimension'",
        ),
        ({"texts": ["a"], "embedding_types": ["int8"]}, "int8 needs the range of each dimension"),
        ({"texts": ["a"], "embedding_types": ["float", "uint8"]}, "uint8 needs the range of each dimension"),
        ({"texts": ["a"], "embedding_types": []}, "Invalid value for 'embedding_types'"),
        ({"texts": ["a"], "input_type": "passages"}, "Invalid value for 'input_type'"),
        ({"texts": ["a"], "input_type": "image"}, "does not accept images"),
        ({"texts": ["a"], "truncate": "MIDDLE"}, "Invalid value for 'truncate'"),
        ({"images": [IMAGE]}, "does not accept images"),
        ({"inputs": [{"content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}]}, "does not accept images"),
        ({"inputs": [{"content": [PART, PART]}]}, "Invalid value for 'inputs[0].content'"),
        ({"inputs": [{"content": [{"type": "text", "text": ""}]}]}, "'inputs[0]' is empty. Send a text."),
    ],
)
def test_what_cannot_be_embedded_is_refused_in_cohere_s_form(
    embedder: TestClient, engine: FakeEngine, fields: dict[str, Any], words: str
) -> None:
    answer = embedder.post("/v2/embed", json={"model": MODEL, **fields})
    assert (answer.status_code, engine.admitted) == (400, [])
    assert words in error_message(answer)


def test_the_number_of_texts_is_bounded(embedder: TestClient, engine: FakeEngine) -> None:
    answer = embedder.post("/v2/embed", json={"texts": ["a"] * 8193})
    assert (answer.status_code, engine.admitted) == (400, [])
    assert "at most 8192 items" in error_message(answer)


def test_a_body_may_have_sixteen_times_the_tokens_of_the_context(engine: FakeEngine) -> None:
    context = make_context(engine, purpose=Embeds(DIMENSIONS), max_body_bytes=2**22)
    with TestClient(app_over(context)) as client:
        answers = [client.post("/v2/embed", json={"texts": ["a" * 6000] * count}) for count in (200, 210)]
    assert [answer.status_code for answer in answers] == [200, 413]
    assert "the limit for this model's context length" in error_message(answers[1])
    assert len(engine.admitted) == 200


def test_other_errors_have_cohere_s_form(embedder: TestClient, engine: FakeEngine, client: TestClient) -> None:
    answer = embedder.post("/v2/embed", json={"texts": ["a"], "model": "other"})
    assert answer.status_code == 404
    assert error_message(answer).startswith("The model 'other' does not exist.")
    assert error_message(embedder.get("/v2/embed")) == "Not allowed to GET on /v2/embed."
    engine.fail_after = 0
    assert embedder.post("/v2/embed", json={"texts": ["a"]}).status_code == 500
    answer = client.post("/v2/embed", json={"texts": ["a"]})
    assert (answer.status_code, "'--task embed'" in error_message(answer)) == (400, True)


def test_texts_go_in_the_order_of_the_priority(embedder: TestClient, engine: FakeEngine) -> None:
    embed(embedder, ["a", "b"], priority=7)
    assert [request.priority for request in engine.admitted] == [7, 7]
