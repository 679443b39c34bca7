"""Folders with a `tokenizer.model` alone, compared with the sentencepiece library."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from numaserve.server.tokenizer import TokenizerError, load_tokenizer

from tests.support.tokenizer_builders import SAMPLES

PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
WAYS: dict[str, dict[str, Any]] = {
    "as Llama's": {**PLAIN, "byte_fallback": True, "split_digits": True},
    "without a space before the text": {**PLAIN, "byte_fallback": True, "add_dummy_prefix": False},
    "normalized": {"byte_fallback": True},
    "with tokens of its own": {**PLAIN, "byte_fallback": True, "user_defined_symbols": ["<tool>", "<|end|>"]},
    "without bytes": PLAIN,
}
# As in transformers no space is put before a text that begins with one; sentencepiece does.
TEXTS = [text.lstrip() for text in SAMPLES if "\0" not in text and "<|im" not in text]


def write_model(folder: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    written = io.BytesIO()
    settings = {"model_type": "bpe", "vocab_size": 420, "hard_vocab_limit": False, "minloglevel": 3, **options}
    sentences = iter([line for text in TEXTS for line in text.splitlines()] * 3)
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=sentences, model_writer=written, **settings)
    (folder / "tokenizer.model").write_bytes(written.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


@pytest.mark.parametrize("way", WAYS)
def test_the_tokens_are_sentencepiece_s(tmp_path: Path, way: str) -> None:
    expected = write_model(tmp_path, **WAYS[way])
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == expected.get_piece_size()
    for text in TEXTS:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        assert tokens == expected.encode(text), text
        if expected.unk_id() not in tokens:  # which has a spelling of its own there
            assert tokenizer.decode(tokens) == expected.decode(tokens), text


def test_a_text_begins_with_the_token_that_the_file_names(tmp_path: Path) -> None:
    expected = write_model(tmp_path, **WAYS["as Llama's"])
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (expected.bos_id(), {expected.eos_id()})
    assert tokenizer.encode("a")[0] == expected.bos_id()
    assert tokenizer.special_token_ids == {expected.bos_id(), expected.eos_id()}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False, "chat_template": "x"}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("a") == expected.encode("a")
    assert tokenizer.chat_template == "x"


def test_a_tokenizer_json_goes_before(tmp_path: Path) -> None:
    write_model(tmp_path, **WAYS["as Llama's"])
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(tmp_path)


def test_a_model_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    write_model(tmp_path, model_type="unigram")
    with pytest.raises(TokenizerError, match="a kind other than BPE"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"IQ== 0\nIg== 1\n", b"\x0a\xff", b"\x0b\x00", b"\x08" + b"\xff" * 20, b"\x0a\x03\x0a\x01\xff"]
)
def test_what_is_no_sentencepiece_model_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.model is (not )?a sentencepiece model"):
        load_tokenizer(tmp_path)
