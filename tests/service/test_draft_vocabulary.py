import json
from pathlib import Path

import pytest
from numaserve.server.service.checks.draft_vocabulary import check_vocabulary
from numaserve.server.tokenizer import load_tokenizer
from numaserve.workers.interface.errors import OperatorError

from tests.support.tokenizer_builders import write_byte_level_gguf, write_folder, write_sentencepiece_gguf


def test_a_draft_model_of_the_same_tokens_will_do(tmp_path: Path) -> None:
    one, other = (write_byte_level_gguf(tmp_path / f"{name}.gguf", "gpt-2") for name in ("one", "other"))
    check_vocabulary(load_tokenizer(one), other)


def test_rows_of_the_embedding_beyond_the_tokens_do_no_harm(tmp_path: Path) -> None:
    folder, longer = (tmp_path / name for name in ("folder", "longer"))
    for each in (folder, longer):
        each.mkdir()
        write_folder(each, tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"})
    text = json.loads((longer / "tokenizer.json").read_text())
    text["model"]["vocab"]["[PAD]"] = 1 + max(text["model"]["vocab"].values())
    (longer / "tokenizer.json").write_text(json.dumps(text))
    assert load_tokenizer(longer).vocab_size == 1 + load_tokenizer(folder).vocab_size
    check_vocabulary(load_tokenizer(folder), longer)


def test_one_of_other_tokens_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    one = write_byte_level_gguf(tmp_path / "one.gguf", "gpt-2")
    other = write_sentencepiece_gguf(tmp_path / "other.gguf")
    with pytest.raises(
        OperatorError, match=r"other.gguf: the vocabulary differs from the model's vocabulary at token \d+"
    ):
        check_vocabulary(load_tokenizer(one), other)
