"""`numaserve serve` with a SPLADE model: texts become sparse vectors."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import transformers as hf
from tokenizers import Tokenizer

from tests.support import encoders
from tests.support.real_server import RealServer
from tests.support.sentence_folder import write_splade
from tests.support.tokenizer_builders import wordpiece_backend

TEXTS = ["The quick brown fox", "leading and inner spaces", "lazy dogs " * 15, "x"]


@pytest.fixture(scope="module")
def model() -> hf.PreTrainedModel:
    return encoders.random_splade("bert")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return wordpiece_backend()


@pytest.fixture(scope="module")
def server(
    model: hf.PreTrainedModel, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealServer]:
    folder: Path = encoders.save("bert", model, tmp_path_factory.mktemp("splade"))
    tokenizer.save(str(folder / "tokenizer.json"))
    write_splade(folder, "sentence_transformers.sparse_encoder.modules", pooling_strategy="max")
    with RealServer("--tp", "2", "--kv-cache-gib", "0.02", model=str(folder)) as server:
        yield server


def test_texts_become_the_sparse_vectors_of_transformers(
    server: RealServer, model: hf.PreTrainedModel, tokenizer: Tokenizer
) -> None:
    exact = np.log1p(np.maximum(encoders.maxima(model, [tokenizer.encode(text).ids for text in TEXTS]), 0))
    answer = httpx.post(server.url + "/embed_sparse", json={"inputs": TEXTS}, timeout=30).json()
    found = np.zeros_like(exact)
    for row, entries in zip(found, answer, strict=True):
        ids = [entry["index"] for entry in entries]
        assert ids == sorted(set(ids))
        row[ids] = [entry["value"] for entry in entries]
        assert (row[ids] > 0).all()
    assert ((found * exact).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(exact, axis=1)).min() >= 0.9999
    assert server.info()["pages_free"] == server.info()["num_pages"]


def test_it_serves_no_embeddings_and_writes_no_text(server: RealServer) -> None:
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/v1/completions", {"prompt": "a"})):
        assert httpx.post(server.url + path, json=body, timeout=30).status_code == 400
