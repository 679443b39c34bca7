"""`numaserve serve` with cross-encoders whose tokenizer's template has types that transformers does not pass on."""

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers as hf

from tests.support import encoders
from tests.support.real_server import RealServer
from tests.support.tokenizer_builders import typed_unigram_backend, wordpiece_backend

QUERY = "the quick fox"
DOCUMENTS = ["The quick brown fox", "leading and inner spaces", "lazy dogs jump", "x"]
CASES: dict[str, dict[str, Any]] = {
    "xlm-roberta": {"tokenizer_class": "XLMRobertaTokenizer"},
    "gte-renamed": {"tokenizer_class": "XLMRobertaTokenizerFast"},
    "bert": {"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids", "attention_mask"]},
}


def expected(folder: Path) -> Any:
    """The logits of transformers for the model and the tokenizer in `folder`."""
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    model = hf.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return np.array([model(**tokenizer(QUERY, each, return_tensors="pt")).logits.item() for each in DOCUMENTS])


@pytest.mark.parametrize("name", CASES)
def test_pairs_without_types_have_the_scores_of_transformers(name: str, tmp_path: Path) -> None:
    sizes = {"type_vocab_size": 1} if name != "bert" else {}
    folder = encoders.save(name, encoders.random_classifier(name, **sizes), tmp_path)
    backend = wordpiece_backend() if name == "bert" else typed_unigram_backend()
    assert max(backend.encode(QUERY, DOCUMENTS[0]).type_ids) == 1
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(CASES[name]))
    with RealServer("--tp", "2", "--kv-cache-gib", "0.02", model=str(folder)) as server:
        body = {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True}
        answer = httpx.post(f"{server.url}/rerank", json=body, timeout=30)
    scores = {each["index"]: each["score"] for each in answer.raise_for_status().json()}
    np.testing.assert_allclose([scores[index] for index in range(len(DOCUMENTS))], expected(folder), atol=0.02)


def test_a_type_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    folder = encoders.save("bert", encoders.random_classifier("bert", type_vocab_size=1), tmp_path)
    wordpiece_backend().save(str(folder / "tokenizer.json"))
    with pytest.raises(IndexError):
        expected(folder)
    with pytest.raises(AssertionError, match="the tokenizer gives the second text of a pair the token type 1"):
        RealServer("--kv-cache-gib", "0.02", model=str(folder)).close()
