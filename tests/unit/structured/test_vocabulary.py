"""llguidance's tokenizer says the same as the server's, whatever file that was read from."""

from pathlib import Path

import pytest
from numaserve.server.structured.vocabulary import Vocabulary
from numaserve.server.tokenizer import Tokenizer, load_tokenizer

from tests.support.tokenizer_builders import (
    SAMPLES,
    byte_level_backend,
    sentencepiece_backend,
    wrap,
    write_byte_level_gguf,
    write_folder,
    write_sentencepiece_gguf,
)

KINDS = ("byte-level folder", "byte-level GGUF", "sentencepiece", "sentencepiece GGUF", "Gemma GGUF", "with a prefix")


def _tokenizer(kind: str, folder: Path) -> Tokenizer:
    path = folder / "model.gguf"
    match kind:
        case "byte-level folder":
            return load_tokenizer(write_folder(folder, config={"eos_token_id": [1, 7]}))
        case "byte-level GGUF":
            return load_tokenizer(write_byte_level_gguf(path, "gpt-2"))
        case "sentencepiece":
            return wrap(sentencepiece_backend())
        case "sentencepiece GGUF":
            return load_tokenizer(write_sentencepiece_gguf(path, add_space_prefix=False))
        case "Gemma GGUF":
            return load_tokenizer(write_sentencepiece_gguf(path, "gemma"))
        case _:
            return load_tokenizer(write_sentencepiece_gguf(path))


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_has_the_bytes_that_it_adds_to_a_text(kind: str, tmp_path: Path) -> None:
    tokenizer = _tokenizer(kind, tmp_path)
    loaded = Vocabulary.of(tokenizer, tokenizer.vocab_size).load()
    # The byte FF, which no text has, is llguidance's mark of special tokens, and no token is that alone.
    plain = [i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) != b"\xff"]
    plain = [i for i in plain if i not in tokenizer.special_token_ids]
    differing = [
        (tokenizer.token_text(i), loaded.decode_bytes([i]))
        for i in plain
        if loaded.decode_bytes([i]) != tokenizer.token_bytes(i)
    ]
    assert not differing


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_never_part_of_plain_text(kind: str, tmp_path: Path) -> None:
    tokenizer = _tokenizer(kind, tmp_path)
    vocabulary = Vocabulary.of(tokenizer, tokenizer.vocab_size)
    loaded = vocabulary.load()
    assert vocabulary.special and set(vocabulary.special.values()) == tokenizer.special_token_ids
    assert all(loaded.is_special_token(token_id) for token_id in vocabulary.special.values())


@pytest.mark.parametrize("kind", KINDS)
def test_forced_text_is_cut_as_the_tokenizer_cuts_it(kind: str, tmp_path: Path) -> None:
    tokenizer = _tokenizer(kind, tmp_path)
    loaded = Vocabulary.of(tokenizer, tokenizer.vocab_size).load()
    for text in SAMPLES[:5]:
        assert loaded.decode_bytes(loaded.tokenize_str(text)).decode() == text


def test_a_model_with_more_logits_than_tokens_has_longer_masks() -> None:
    tokenizer = wrap(byte_level_backend())
    vocabulary = Vocabulary.of(tokenizer, tokenizer.vocab_size + 100)
    assert vocabulary.size == vocabulary.load().vocab_size == tokenizer.vocab_size + 100


def test_a_model_with_fewer_logits_than_tokens_is_served() -> None:
    tokenizer = wrap(byte_level_backend())
    assert Vocabulary.of(tokenizer, 10).load().vocab_size == tokenizer.vocab_size


def test_all_end_tokens_are_known(tmp_path: Path) -> None:
    tokenizer = _tokenizer("byte-level folder", tmp_path)
    vocabulary = Vocabulary.of(tokenizer, tokenizer.vocab_size)
    assert vocabulary.eos == (1, 7)
    assert vocabulary.load().eos_tokens == [1, 7]


def test_an_end_token_outside_the_vocabulary_is_left_out() -> None:
    tokenizer = Tokenizer(
        byte_level_backend(),
        eos_token_ids=frozenset({1, 10**6}),
        bos_token_id=None,
        eos_token_id=1,
        chat_template=None,
    )
    assert Vocabulary.of(tokenizer, tokenizer.vocab_size).eos == (1,)


def test_the_definition_is_that_of_a_tokenizer_json(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    assert '"vocab"' in load_tokenizer(folder).definition()
