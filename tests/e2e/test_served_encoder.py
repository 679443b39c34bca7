"""`numaserve serve` with an encoder: texts become vectors, and what it cannot do is refused in the surface's form."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import transformers as hf
from gguf import PoolingType
from tokenizers import Tokenizer

from tests.support import encoders
from tests.support.gguf_encoders import save_gguf
from tests.support.real_server import RealServer
from tests.support.tokenizer_builders import wordpiece_backend

TEXTS = ["The quick brown fox", "leading and inner spaces", "lazy dogs " * 15, "x"]


@pytest.fixture(scope="module")
def model() -> hf.PreTrainedModel:
    return encoders.random_encoder("bert")


@pytest.fixture(scope="module")
def folder(model: hf.PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoders.save("bert", model, tmp_path_factory.mktemp("bert"), "cls")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    tokenizer = wordpiece_backend()
    path = folder / "tokenizer.json"
    # Texts become vectors without a decoder.
    path.write_text(json.dumps(json.loads(tokenizer.to_str()) | {"decoder": None}))
    return tokenizer


@pytest.fixture(scope="module", params=["folder", "gguf"])
def server(
    request: pytest.FixtureRequest,
    model: hf.PreTrainedModel,
    folder: Path,
    tokenizer: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RealServer]:
    place = folder
    if request.param == "gguf":
        into = tmp_path_factory.mktemp("gguf")
        place = save_gguf("bert", model, into, pooling=PoolingType.CLS, tokenizer=tokenizer)
    with RealServer("--tp", "2", "--kv-cache-gib", "0.02", model=str(place)) as server:
        yield server


def asked(server: RealServer, route: str, **body: Any) -> httpx.Response:
    return httpx.post(server.url + route, json=body, timeout=30)


def test_texts_become_the_vectors_of_transformers(
    server: RealServer, model: hf.PreTrainedModel, tokenizer: Tokenizer
) -> None:
    prompts = [tokenizer.encode(text).ids for text in TEXTS]
    exact = encoders.pooled(encoders.hidden_states(model, prompts), "cls")
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    for given in (TEXTS, prompts):
        answer = asked(server, "/v1/embeddings", input=given).json()
        found = np.array([each["embedding"] for each in answer["data"]])
        assert (found * exact).sum(1).min() >= 0.9999
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-5)
        assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))
    info = server.info()
    assert info["pages_free"] == info["num_pages"]


def test_truncated_texts_become_the_vectors_of_truncated_tokens(
    server: RealServer, model: hf.PreTrainedModel, tokenizer: Tokenizer
) -> None:
    truncated = Tokenizer.from_str(tokenizer.to_str())
    truncated.enable_truncation(11, direction="left")
    prompts = [truncated.encode(text).ids for text in TEXTS]
    assert max(map(len, prompts)) == 11
    exact = encoders.pooled(encoders.hidden_states(model, prompts), "cls")
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    answer = asked(server, "/v2/embed", texts=TEXTS, max_tokens=11, truncate="START").json()
    assert (np.array(answer["embeddings"]["float"]) * exact).sum(1).min() >= 0.9999
    assert answer["meta"]["billed_units"]["input_tokens"] == sum(map(len, prompts))


def test_all_surfaces_give_the_same_vectors(server: RealServer) -> None:
    expected = [each["embedding"] for each in asked(server, "/v1/embeddings", input=TEXTS).json()["data"]]
    assert asked(server, "/embed", inputs=TEXTS).json() == expected
    assert asked(server, "/api/embed", model=server.model, input=TEXTS).json()["embeddings"] == expected
    found = asked(server, "/v2/embed", texts=TEXTS, embedding_types=["float", "ubinary"]).json()["embeddings"]
    assert found["float"] == expected
    assert found["ubinary"] == np.packbits(np.array(expected) > 0, axis=1).tolist()


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}),
        ("/generate", {"text": "a"}),
    ],
)
def test_text_is_not_generated(server: RealServer, route: str, body: dict[str, Any]) -> None:
    answer = asked(server, route, **body)
    assert answer.status_code == 400
    assert "serves embeddings and cannot generate text" in answer.text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("fox " * 300, "maximum context length is 150 tokens, but the input has"),
        ([[1, 2, 99_999]], "token id 99999; this model's token ids are below"),
        ([[]], "at least 1 item"),
    ],
)
def test_what_cannot_be_embedded_is_refused(server: RealServer, given: Any, message: str) -> None:
    answer = asked(server, "/v1/embeddings", input=given)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
