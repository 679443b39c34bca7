"""The two tokens with which a reranker answers, and models that have none."""

import json
from pathlib import Path

import pytest
from numaserve.server.generation.judge import Judge
from numaserve.server.service.model.reranker import find_judge
from numaserve.workers.interface.errors import OperatorError

from tests.support.byte_tokenizer import ByteTokenizer


def configured(folder: Path, **fields: object) -> Path:
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def test_the_words_that_the_model_names_are_its_answers(tmp_path: Path) -> None:
    folder = configured(tmp_path, classifier_from_token=["n", "y"])
    assert find_judge(folder, ByteTokenizer()) == Judge(no=ord("n"), yes=ord("y"))


def test_a_model_without_tokens_for_yes_and_no_is_no_reranker(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="'no' is not a single token"):
        find_judge(tmp_path, ByteTokenizer())


@pytest.mark.parametrize("words", [["y"], "yes", ["a", "b", "c"], [1, 2]])
def test_other_than_two_words_are_refused(tmp_path: Path, words: object) -> None:
    with pytest.raises(OperatorError, match="must be a list of two words"):
        find_judge(configured(tmp_path, classifier_from_token=words), ByteTokenizer())
