"""Tokenizers of encoders in GGUF files: their ids are those of the published tokenizers that they are made from."""

from pathlib import Path

import pytest
import tokenizers
import transformers as hf
from numaserve.server.tokenizer import Tokenizer, load_tokenizer
from numaserve.server.tokenizer.types import TokenizerError

from tests.support.gguf_tokenizers import with_case, write_unigram_folder, write_unigram_gguf, write_wordpiece_gguf
from tests.support.tokenizer_builders import SAMPLES, byte_level_backend, wordpiece_backend, write_byte_level_gguf

TEXTS = (
    *SAMPLES,
    " The fox",
    "THE Fox İ",
    "a" * 101 + " lines",
    "fox [MASK] dogs [SEP]</s>lazy <mask> x",
    "ﬁne \uff21\uff22\uff23 ½ x\u0301 \u2581fox ▁▁",
    "tabs\t\u3000\u00a0and\u200bmore\ufffd",
    "[PAD3] 字fox字 ##ing",
)
BACKENDS = {"uncased": wordpiece_backend, "cased": lambda: with_case(wordpiece_backend())}


def of_hugging_face(backend: tokenizers.Tokenizer) -> hf.PreTrainedTokenizerFast:
    """A published tokenizer, whose special tokens are found in texts."""
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "unk", "pad", "mask")}
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def assert_same(tokenizer: Tokenizer, oracle: hf.PreTrainedTokenizerBase) -> None:
    for text in TEXTS:
        ids = oracle.encode(text)
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.encode(text, add_special_tokens=False) == ids[1:-1]


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("kind", BACKENDS)
def test_wordpieces_are_those_of_bert(kind: str, stated: bool, tmp_path: Path) -> None:
    backend = BACKENDS[kind]()
    flags = {"lowercase": kind == "uncased"} if stated else {}
    tokenizer = load_tokenizer(write_wordpiece_gguf(tmp_path / "model.gguf", backend, **flags))
    assert_same(tokenizer, of_hugging_face(backend))
    assert (tokenizer.encode("The") == tokenizer.encode("the")) == (kind == "uncased")
    assert {tokenizer.token_text(token) for token in tokenizer.special_token_ids} >= {"[CLS]", "[SEP]", "[UNK]"}
    assert tokenizer._confined is None


PAIR = ("The fox", "lazy dogs jump")


def joined(tokenizer: Tokenizer) -> tuple[list[int], int]:
    """The ids of the pair, and the position of its first token of type 1."""
    first, second = (tokenizer.encode(text, add_special_tokens=False) for text in PAIR)
    assert first
    assert second
    return tokenizer.pair_form().joined(first, second)


def test_pairs_are_joined_as_by_bert(tmp_path: Path) -> None:
    backend = wordpiece_backend()
    tokenizer = load_tokenizer(write_wordpiece_gguf(tmp_path / "model.gguf", backend))
    oracle = backend.encode(*PAIR)
    assert joined(tokenizer) == (oracle.ids, oracle.type_ids.index(1))


def test_pairs_are_joined_as_by_xlm_roberta(tmp_path: Path) -> None:
    folder = write_unigram_folder(tmp_path)
    tokenizer = load_tokenizer(write_unigram_gguf(tmp_path / "model.gguf", folder))
    assert joined(tokenizer) == (hf.XLMRobertaTokenizer.from_pretrained(folder).encode(*PAIR), 0)


@pytest.mark.parametrize(("architecture", "between"), [("bert", [1, 1]), ("modern-bert", [1])])
def test_pairs_of_byte_level_tokens(architecture: str, between: list[int], tmp_path: Path) -> None:
    around = {"add_bos_token": True, "add_eos_token": True}
    path = write_byte_level_gguf(tmp_path / "model.gguf", "roberta-bpe", architecture=architecture, **around)
    first, second = (byte_level_backend().encode(text).ids for text in PAIR)
    assert joined(load_tokenizer(path)) == ([0, *first, *between, *second, 1], 0)


def test_accents_are_kept_where_the_file_says_so(tmp_path: Path) -> None:
    backend, found = wordpiece_backend(), []
    for strip in (True, False):
        backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True, strip_accents=strip)
        path = write_wordpiece_gguf(tmp_path / f"{strip}.gguf", backend, lowercase=True, strip_accents=strip)
        tokenizer = load_tokenizer(path)
        assert_same(tokenizer, of_hugging_face(backend))
        found.append(tokenizer.encode("café"))
    assert found[0] != found[1]


def test_a_wordpiece_vocabulary_has_its_special_tokens(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece({"a": 0, "[CLS]": 1, "[UNK]": 2}, unk_token="[UNK]"))
    with pytest.raises(TokenizerError, match=r"the vocabulary has no \[SEP\] token"):
        load_tokenizer(write_wordpiece_gguf(tmp_path / "model.gguf", backend))


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": True, "add_eos_token": True}])
def test_unigrams_are_those_of_xlm_roberta(flags: dict[str, bool], tmp_path: Path) -> None:
    folder = write_unigram_folder(tmp_path)
    tokenizer = load_tokenizer(write_unigram_gguf(tmp_path / "model.gguf", folder, **flags))
    oracle = hf.XLMRobertaTokenizer.from_pretrained(folder)
    assert_same(tokenizer, oracle)
    assert oracle.unk_token_id in oracle.encode(TEXTS[4])
    assert (tokenizer.bos_token_id, tokenizer.vocab_size) == (0, len(oracle) + 7)
    assert tokenizer._confined is None


def test_unigrams_without_tokens_around_a_text(tmp_path: Path) -> None:
    flags = {"add_bos_token": False, "add_eos_token": False}
    path = write_unigram_gguf(tmp_path / "model.gguf", write_unigram_folder(tmp_path), **flags)
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode("fox") == tokenizer.encode("fox", add_special_tokens=False)


def test_unigrams_that_keep_spaces_are_refused(tmp_path: Path) -> None:
    folder = write_unigram_folder(tmp_path)
    path = write_unigram_gguf(tmp_path / "model.gguf", folder, remove_extra_whitespaces=False)
    with pytest.raises(TokenizerError, match="remove_extra_whitespaces is false"):
        load_tokenizer(path)


@pytest.mark.parametrize("pre", ["roberta-bpe", "modern-bert", "qwen2"])
def test_byte_level_tokens_may_be_followed_by_an_end(pre: str, tmp_path: Path) -> None:
    plain = load_tokenizer(write_byte_level_gguf(tmp_path / "plain.gguf", pre))
    around = {"add_bos_token": True, "add_eos_token": True}
    tokenizer = load_tokenizer(write_byte_level_gguf(tmp_path / "model.gguf", pre, **around))
    expected = byte_level_backend().encode("e\u0301 fox" if pre == "roberta-bpe" else "\u00e9 fox").ids
    assert plain.encode("e\u0301 fox") == expected
    assert tokenizer.encode("e\u0301 fox") == [0, *expected, 1]
