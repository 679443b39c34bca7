"""`numaserve serve` with the heads of BGE-M3: texts have an embedding, weights of tokens and vectors of tokens."""

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import Tokenizer

from tests.support import encoders
from tests.support.real_server import RealServer
from tests.support.token_heads import COLUMNS, random_heads, save_heads
from tests.support.tokenizer_builders import wordpiece_backend

TEXTS = ["The quick brown fox", "leading and inner spaces", "lazy dogs " * 15, "x"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return wordpiece_backend()


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("bge-m3")
    encoders.save("xlm-roberta", encoders.random_encoder("xlm-roberta"), folder, "cls")
    tokenizer.save(str(save_heads(folder, random_heads()) / "tokenizer.json"))
    with RealServer("--tp", "2", "--kv-cache-gib", "0.02", model=str(folder)) as server:
        yield server


@pytest.fixture(scope="module")
def exact(tokenizer: Tokenizer) -> list[npt.NDArray[np.float64]]:
    """The vectors and the weights of the tokens of each text."""
    prompts = [tokenizer.encode(text).ids for text in TEXTS]
    states = encoders.hidden_states(encoders.random_encoder("xlm-roberta"), prompts)
    return [random_heads().columns(each) for each in states]


def asked(server: RealServer, path: str, **body: Any) -> Any:
    answer = httpx.post(server.url + path, json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_weights_of_tokens_leave_out_special_tokens(
    server: RealServer, tokenizer: Tokenizer, exact: list[npt.NDArray[np.float64]]
) -> None:
    special = {tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]", "[PAD]", "[UNK]")}
    for text, columns, entries in zip(TEXTS, exact, asked(server, "/embed_sparse", inputs=TEXTS), strict=True):
        expected: dict[int, float] = {}
        for token, weight in zip(tokenizer.encode(text).ids, columns[:, COLUMNS], strict=True):
            if token not in special and weight > 0.02:
                expected[token] = max(expected.get(token, 0.0), weight)
        found = {entry["index"]: entry["value"] for entry in entries}
        assert special.isdisjoint(found)
        assert {token for token, weight in found.items() if weight > 0.04} <= set(expected)
        assert [found[token] for token in expected] == pytest.approx(list(expected.values()), abs=0.02)


def test_vectors_of_tokens_are_those_of_the_layer(server: RealServer, exact: list[npt.NDArray[np.float64]]) -> None:
    answer = asked(server, "/v1/embeddings", input=TEXTS, return_multivector=True)
    for columns, item in zip(exact, answer["data"], strict=True):
        found, expected = np.array(item["embeddings"]), columns[1:, :COLUMNS]
        assert found.shape == expected.shape
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-5)
        assert ((found * expected).sum(1) / np.linalg.norm(expected, axis=1)).min() >= 0.9999


def test_the_embedding_is_as_before(server: RealServer, tokenizer: Tokenizer) -> None:
    states = encoders.hidden_states(
        encoders.random_encoder("xlm-roberta"), [tokenizer.encode(text).ids for text in TEXTS]
    )
    exact = encoders.pooled(states, "cls")
    found = np.array(asked(server, "/embed", inputs=TEXTS))
    assert ((found * exact).sum(1) / np.linalg.norm(exact, axis=1)).min() >= 0.9999
    assert server.info()["pages_free"] == server.info()["num_pages"]
