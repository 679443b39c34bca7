import pytest
from hypothesis import given
from hypothesis import strategies as st
from numaserve.server.tokenizer import Tokenizer
from numaserve.server.tokenizer.detokenizer import IncrementalDetokenizer
from numaserve.server.tokenizer.token_bytes import byte_alphabet
from tokenizers import pre_tokenizers

from tests.support.tokenizer_builders import SAMPLES, byte_level_backend, sentencepiece_backend, wrap

BYTE_LEVEL = wrap(byte_level_backend())
SENTENCEPIECE = wrap(sentencepiece_backend())
BOTH = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])


def pieces(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


def test_the_byte_alphabet_is_that_of_the_tokenizers_library() -> None:
    assert sorted(byte_alphabet()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))


@BOTH
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="▁")))  # sentencepiece itself reads ▁ as a space
def test_any_text_comes_back_without_a_replacement_character_on_the_way(tokenizer: Tokenizer, text: str) -> None:
    shown = pieces(tokenizer, tokenizer.encode(text, add_special_tokens=False))
    assert "".join(shown) == text
    assert all(piece.count("\ufffd") <= text.count("\ufffd") for piece in shown)


@BOTH
@pytest.mark.parametrize("text", SAMPLES)
def test_an_emoji_split_over_tokens_shows_only_when_it_is_complete(tokenizer: Tokenizer, text: str) -> None:
    so_far = ""
    for piece in pieces(tokenizer, tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False):
        so_far += piece
        assert text.startswith(so_far)
    assert so_far == text


@given(ids=st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1)), skip=st.booleans())
def test_any_tokens_of_a_byte_level_vocabulary_give_what_decode_gives(ids: list[int], skip: bool) -> None:
    assert "".join(pieces(BYTE_LEVEL, ids, skip)) == BYTE_LEVEL.decode(ids, skip_special_tokens=skip)


@given(ids=st.lists(st.integers(259, SENTENCEPIECE.vocab_size - 1)))
def test_tokens_of_a_sentencepiece_vocabulary_give_what_decode_gives(ids: list[int]) -> None:
    assert "".join(pieces(SENTENCEPIECE, ids)) == SENTENCEPIECE.decode(ids)


@given(data=st.binary())
def test_broken_bytes_become_replacement_characters_as_soon_as_they_are_known_to_be_broken(data: bytes) -> None:
    shown = pieces(SENTENCEPIECE, [3 + byte for byte in data])
    assert "".join(shown) == data.decode(errors="replace")
    for end in range(len(data)):
        # Held back is at most the start of one character. A surrogate's first bytes (ED A0) count.
        certain = "".join(shown[: end + 1])
        assert len(data[: end + 1].decode(errors="replace")) - len(certain) in (0, 1, 2)


def test_an_unfinished_character_at_the_end_becomes_a_replacement_character() -> None:
    euro = [3 + byte for byte in "€".encode()]
    assert pieces(SENTENCEPIECE, euro[:2]) == ["", "", "\ufffd"]


def test_a_special_token_is_left_out_or_written_as_asked() -> None:
    ids = [*BYTE_LEVEL.encode("a"), *BYTE_LEVEL.eos_token_ids]
    assert pieces(BYTE_LEVEL, ids) == ["a", "", ""]
    assert pieces(BYTE_LEVEL, ids, skip_special_tokens=False) == ["a", "</s>", ""]


def test_a_continuation_keeps_its_first_space() -> None:
    space_a = SENTENCEPIECE.encode(" a")
    assert pieces(SENTENCEPIECE, space_a) == [" a", ""]


def test_ids_beyond_the_vocabulary_add_nothing() -> None:
    # Models pad their vocabulary, and such an id can be sampled.
    assert pieces(BYTE_LEVEL, [BYTE_LEVEL.vocab_size + 7]) == ["", ""]
