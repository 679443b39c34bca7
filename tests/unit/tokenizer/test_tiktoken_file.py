"""Folders with a `tiktoken.model` alone, compared with the tiktoken library."""

import base64
import json
import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from numaserve.server.tokenizer import TokenizerError, load_tokenizer
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import RANKS_BYTES

from tests.support.tokenizer_builders import SAMPLES

# As tokenization_kimi.py of Kimi K2 states it.
_PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
_SPECIAL = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 22: "<think>"}  # by the place among them
_ENDS = [
    "'s",
    "'S",
    "'\u017f",
    "中文",
    "々",
    "\u3007",
    "\U00020000",
    "日本の",
    "ǅ",
    "ʰ",
    "\u0301",
    "ﾊ",
    "Ⅷ",
    "½",
    "1",
    "23",
    "4567",
]
_GAPS = [" ", "  ", "   \n", "\n", "\r\n", "\t", "\x0b", "\x85", "\u00a0", "\u2028", "\u3000", "/", "://", "", ""]
_BLOCKS = [(32, 127), (128, 0x3000), (0x4E00, 0xA000), (0x1F300, 0x1FAFF), (0, 0xD800), (0xE000, 0x110000)]
_BYTES = [bytes([byte]) for byte in range(256)]
_CONFIG = {"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]"}


def random_text(rng: random.Random, words: Sequence[str]) -> str:
    """Words, ideographs, emoji, marks and white space of all kinds, and any characters."""
    kinds = [words, _ENDS, _GAPS, [chr(rng.randrange(*rng.choice(_BLOCKS)))]]
    return "".join(rng.choice(rng.choice(kinds)) for _ in range(rng.randrange(1, 40)))


def trained(texts: Sequence[str], count: int) -> list[bytes]:
    """All bytes in some order, and `count` merges of the most frequent pairs."""
    tokens, pieces = random.Random(0).sample(_BYTES, 256), [[bytes([byte]) for byte in text.encode()] for text in texts]
    for _ in range(count):
        pairs = Counter(pair for piece in pieces for pair in pairwise(piece))
        pair = max((each for each in pairs if b"".join(each) not in tokens), key=lambda each: (pairs[each], each))
        tokens.append(b"".join(pair))
        pieces = [merged(piece, pair) for piece in pieces]
    return tokens


def merged(piece: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    out: list[bytes] = []
    for token in piece:
        if out and (out[-1], token) == pair:
            out[-1] += token
        else:
            out.append(token)
    return out


def write_model(folder: Path, tokens: Sequence[bytes], **config: Any) -> tiktoken.Encoding:
    """A folder as Kimi's; returns the library's tokenizer of the same file, made as Kimi's own code makes it."""
    lines = [b"%s %d" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)]
    (folder / "tiktoken.model").write_bytes(b"\n".join([*lines, b""]))
    first = len(tokens)
    listed = {str(first + at): {"content": text, "special": text != "<think>"} for at, text in _SPECIAL.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(_CONFIG | {"added_tokens_decoder": listed} | config))
    special = {_SPECIAL.get(at, f"<|reserved_token_{first + at}|>"): first + at for at in range(256)}
    ranks = {token: rank for rank, token in enumerate(tokens)}
    return tiktoken.Encoding("kimi", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens=special)


def test_the_tokens_are_tiktoken_s(tmp_path: Path) -> None:
    rng = random.Random(0)
    words = [word for sample in SAMPLES for word in sample.split() if "<|" not in word]
    # No merges lead to the last of these tokens, which are found as whole words only.
    tokens = [*trained([random_text(rng, words) for _ in range(40)], 120), b"qzqzq", "☃☄☃☄".encode()]
    expected = write_model(tmp_path, tokens)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == expected.n_vocab == len(tokens) + 256
    words += [*_SPECIAL.values(), f"<|reserved_token_{len(tokens) + 7}|>", "qzqzq", "☃☄☃☄", "☃☄☃"]
    for text in [*SAMPLES, *(random_text(rng, words) for _ in range(600))]:
        ids = tokenizer.encode(text)
        assert ids == expected.encode(text, allowed_special="all"), text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_special_tokens_are_those_that_the_configuration_lists_and_reserved_ones(tmp_path: Path) -> None:
    expected = write_model(tmp_path, _BYTES, chat_template="{{ bos_token }}x")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 258}))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (256, {257, 258})
    assert tokenizer.special_token_ids == {*range(256, 512)} - {expected.encode_single_token("<think>")}
    assert tokenizer.decode(tokenizer.encode("<think>a<|im_end|>")) == "<think>a"
    assert tokenizer.render_chat([{"role": "user", "content": "Hello"}]) == "[BOS]x"


def test_a_tokenizer_json_and_a_tokenizer_model_go_before(tmp_path: Path) -> None:
    write_model(tmp_path, _BYTES)
    for name, message in (("tokenizer.model", "not a sentencepiece model"), ("tokenizer.json", "cannot be read")):
        (tmp_path / name).write_text("{")
        with pytest.raises(TokenizerError, match=message):
            load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", [None, "PreTrainedTokenizerFast", 7])
def test_a_class_that_may_split_otherwise_is_refused(name: object, tmp_path: Path) -> None:
    write_model(tmp_path, _BYTES, tokenizer_class=name)
    with pytest.raises(TokenizerError, match=r"tokenizer_class .* is not supported .*TikTokenTokenizer\); use a copy"):
        load_tokenizer(tmp_path)


def test_a_special_token_that_is_a_word_too_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, [*_BYTES, b"[BOS]"])
    with pytest.raises(TokenizerError, match="'\\[BOS\\]' the id 257, which contradicts the vocabulary"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "some byte is not a token"),
        (b"IQ== 0\nIg== 1\n", "some byte is not a token"),
        (b"IQ== 0\nIg==\n", "not enough values"),
        (b"IQ== 0 1\n", "too many values"),
        (b"IQ=! 0\n", "base64"),
        (b"I 0\n", "base64|padding"),
        (b"IQ== x\n", "invalid literal"),
        (b"IQ== " + b"9" * 5000, "integer string conversion"),
        (b"IQ== 1\n", "do not count from 0"),
        (b"IQ== -1\nIg== 0\n", "do not count from 0"),
        (b"IQ== 0\nIg== 0\n", "do not count from 0"),
        (b"IQ== 0\nIQ== 1\n", "two ranks"),
        (b"IQ== 0\n" + base64.b64encode(bytes(513)) + b" 1\n", "more than 512"),
        (b"\xff\xfe 0\n", "base64|non-ASCII|ascii"),
    ],
)
def test_what_is_no_tiktoken_model_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    write_model(tmp_path, _BYTES)
    (tmp_path / "tiktoken.model").write_bytes(content)
    with pytest.raises(TokenizerError, match=rf"tiktoken\.model is not a tiktoken model \(.*({message})"):
        load_tokenizer(tmp_path)


def test_a_file_of_any_length_is_not_read(tmp_path: Path) -> None:
    write_model(tmp_path, _BYTES)
    with (tmp_path / "tiktoken.model").open("wb") as file:
        file.truncate(RANKS_BYTES + 1)
    with pytest.raises(OperatorError, match="larger than the limit of 8 MiB"):
        load_tokenizer(tmp_path)
