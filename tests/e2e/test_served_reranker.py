"""`numaserve serve` with a cross-encoder: documents are ranked by its scores."""

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

QUERY = "the quick fox"
DOCUMENTS = ["The quick brown fox", "leading and inner spaces", "lazy dogs " * 30, "x", "inner"]


@pytest.fixture(scope="module")
def model() -> hf.PreTrainedModel:
    return encoders.random_classifier("bert")


@pytest.fixture(scope="module")
def folder(model: hf.PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoders.save("bert", model, tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    tokenizer = wordpiece_backend()
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


@pytest.fixture(scope="module")
def server(folder: Path, tokenizer: Tokenizer) -> Iterator[RealServer]:
    with RealServer("--tp", "2", "--kv-cache-gib", "0.02", model=str(folder)) as server:
        yield server


@pytest.fixture(scope="module")
def expected(model: hf.PreTrainedModel, tokenizer: Tokenizer) -> Any:
    """The logit of each document, of the pair cut to the model's length."""
    tokenizer.enable_truncation(encoders.POSITIONS, strategy="longest_first")
    pairs = [tokenizer.encode(QUERY, document) for document in DOCUMENTS]
    assert max(len(pair.ids) for pair in pairs) == encoders.POSITIONS
    return encoders.logits(model, [pair.ids for pair in pairs], [pair.type_ids.index(1) for pair in pairs])[:, 0]


def asked(server: RealServer, route: str, **body: Any) -> Any:
    answer = httpx.post(server.url + route, json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_documents_have_the_scores_of_the_cross_encoder(server: RealServer, expected: Any) -> None:
    ranked = asked(server, "/rerank", query=QUERY, documents=DOCUMENTS, truncate=True)["results"]
    scores = {each["index"]: each["relevance_score"] for each in ranked}
    np.testing.assert_allclose([scores[index] for index in range(5)], 1 / (1 + np.exp(-expected)), atol=0.01)
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    raw = asked(server, "/rerank", query=QUERY, texts=DOCUMENTS, truncate=True, raw_scores=True)
    np.testing.assert_allclose([each["score"] for each in raw], expected[[each["index"] for each in raw]], atol=0.05)
    alone = asked(server, "/rerank", query=QUERY, documents=DOCUMENTS[1:2])["results"]
    assert alone[0]["relevance_score"] == scores[1]


def test_a_gguf_file_holds_a_cross_encoder(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = encoders.random_classifier("distilbert")
    path = save_gguf("distilbert", model, tmp_path, pooling=PoolingType.RANK, tokenizer=tokenizer)
    exact = encoders.logits(model, [tokenizer.encode(QUERY, document).ids for document in DOCUMENTS])[:, 0]
    with RealServer("--tp", "2", "--kv-cache-gib", "0.02", model=str(path)) as server:
        ranked = asked(server, "/rerank", query=QUERY, texts=DOCUMENTS, truncate=True, raw_scores=True)
    np.testing.assert_allclose([each["score"] for each in ranked], exact[[each["index"] for each in ranked]], atol=0.05)


def test_a_pair_that_does_not_fit_is_refused_unless_it_may_be_cut(server: RealServer) -> None:
    answer = httpx.post(server.url + "/rerank", json={"query": QUERY, "documents": DOCUMENTS}, timeout=30)
    assert answer.status_code == 400
    assert "has 150 tokens" not in answer.text
    assert f"maximum context length is {encoders.POSITIONS} tokens" in answer.text


def test_the_declared_activation_is_that_of_scores(folder: Path, server: RealServer, expected: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    other = folder.parent / "identity"
    other.mkdir()
    for file in folder.iterdir():
        (other / file.name).symlink_to(file)
    (other / "config.json").unlink()
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (other / "config.json").write_text(json.dumps(config))
    with RealServer("--tp", "1", "--kv-cache-gib", "0.02", model=str(other)) as identity:
        ranked = asked(identity, "/v2/rerank", query=QUERY, documents=DOCUMENTS)["results"]
    found = [each["relevance_score"] for each in ranked]
    np.testing.assert_allclose(found, expected[[each["index"] for each in ranked]], atol=0.05)
