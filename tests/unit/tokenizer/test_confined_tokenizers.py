"""A tokenizer whose time or memory nothing bounds works in a process that can be ended; all others work here."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import tokenizers
from numaserve.server.tokenizer import Tokenizer, load_tokenizer
from numaserve.server.tokenizer import tokenizer as tokenizer_module
from numaserve.server.tokenizer.confined import ConfinedTokenizer
from numaserve.server.tokenizer.pre_tokenizers import _BY_NAME
from numaserve.server.tokenizer.steps import all_are_bounded
from numaserve.server.tokenizer.types import TextBeyondLimits, TokenizationError, TokenizerError, TokenizerUnavailable
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from tests.support.tokenizer_builders import (
    SAMPLES,
    byte_level_backend,
    sentencepiece_backend,
    wrap,
    write_byte_level_gguf,
    write_sentencepiece_gguf,
)

RARE = "☠"
DOUBLING = [normalizers.Replace(RARE, 2 * RARE)] * 40
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)


def template(*single: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=[*single], special_tokens=[("<s>", 0)])


UNBOUNDED: list[dict[str, object]] = [
    {"normalizer": normalizers.Sequence(DOUBLING)},
    {"normalizer": normalizers.Sequence([normalizers.Sequence(DOUBLING[:3]), *DOUBLING[:3]])},
    {"normalizer": normalizers.Sequence([normalizers.Prepend(RARE)] * 3)},
    {"normalizer": normalizers.Sequence([normalizers.ByteLevel()] * 2)},
    {"normalizer": normalizers.Replace("", RARE)},
    {"normalizer": normalizers.Replace(Regex(" {2,}"), 100 * RARE)},
    {"normalizer": normalizers.Replace(Regex("x?y?z"), "")},
    {"pre_tokenizer": pre_tokenizers.Sequence([BYTE_LEVEL] * 2)},
    {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex("(x+)+$"), "isolated"), BYTE_LEVEL])},
    {"post_processor": template("$A", "$A")},
    {"post_processor": template(*["<s>"] * 16, "$A")},
    {"post_processor": processors.Sequence([template("<s>", "$A")] * 2)},
    {"decoder": decoders.Sequence([*[decoders.Replace(RARE, 2 * RARE)] * 40, decoders.ByteLevel()])},
    {"model": models.WordPiece({"a": 0}, unk_token="a", max_input_chars_per_word=2**31)},
]
BOUNDED: list[dict[str, object]] = [
    {},
    {"normalizer": normalizers.Sequence([normalizers.NFKC(), normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])},
    {"normalizer": normalizers.Replace(Regex(" {2,}"), "▁")},
    {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL])},
    {"post_processor": processors.Sequence([processors.ByteLevel(), template("<s>", "$A", "<s>")])},
    {"model": models.WordPiece({"a": 0}, unk_token="a", max_input_chars_per_word=100), "decoder": decoders.WordPiece()},
]


def changed(parts: dict[str, object]) -> tokenizers.Tokenizer:
    backend = byte_level_backend()
    for name, part in parts.items():
        setattr(backend, name, part)
    return backend


@pytest.mark.parametrize("parts", UNBOUNDED, ids=str)
def test_steps_that_may_explode_or_never_end_are_known_by_the_file(parts: dict[str, object]) -> None:
    assert not all_are_bounded(changed(parts))


@pytest.mark.parametrize("parts", BOUNDED, ids=str)
def test_steps_that_real_models_have_cost_no_process(parts: dict[str, object]) -> None:
    assert all_are_bounded(changed(parts))


def test_no_tokenizer_of_a_gguf_file_or_of_sentencepiece_costs_a_process(tmp_path: Path) -> None:
    assert all_are_bounded(sentencepiece_backend())
    paths = [write_byte_level_gguf(tmp_path / f"{name}.gguf", name) for name in _BY_NAME]
    for architecture in ("llama", "phi3", "gemma2"):
        paths.append(write_sentencepiece_gguf(tmp_path / f"{architecture}.gguf", architecture))
    assert [path.name for path in paths if load_tokenizer(path)._confined is not None] == []


# A text that explodes takes all of it. `test_tokenizer_check.py` reaches the limit that servers have.
IMPATIENT = partial(ConfinedTokenizer, cpu_seconds=0.5, seconds=60.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "ConfinedTokenizer", IMPATIENT)


@pytest.fixture
def confined() -> Iterator[ConfinedTokenizer]:
    made = IMPATIENT(changed({"normalizer": normalizers.Sequence(DOUBLING)}).to_str())
    yield made
    made.close()


def test_it_gives_what_the_library_gives_here(confined: ConfinedTokenizer) -> None:
    here = wrap(byte_level_backend())
    for text in (*SAMPLES, "\ud800 alone"):
        ids = confined.encode(text, add_special_tokens=True)
        assert ids == here.encode(text)
        assert confined.decode(ids, skip_special_tokens=False) == here.decode(ids, skip_special_tokens=False)


def test_a_text_that_explodes_ends_at_the_limit_and_the_next_one_is_tokenized(confined: ConfinedTokenizer) -> None:
    with pytest.raises(TextBeyondLimits, match=r"more than 0\.5 s of processor time|crashed twice"):
        confined.encode(f"A {RARE} on a black flag", add_special_tokens=True)
    assert confined.encode("dogs", add_special_tokens=False)


@pytest.mark.usefixtures("impatient")
def test_tokens_whose_text_explodes_end_at_the_limit_too() -> None:
    backend = changed(UNBOUNDED[-2])
    backend.add_tokens([AddedToken(RARE)])
    tokenizer = wrap(backend)
    with pytest.raises(TextBeyondLimits):
        tokenizer.decode([backend.token_to_id(RARE)])
    assert tokenizer.decode(tokenizer.encode("dogs")) == "dogs"
    tokenizer.close()


def test_a_process_that_was_stopped_is_replaced(confined: ConfinedTokenizer) -> None:
    confined.encode("dogs", add_special_tokens=True)
    os.kill(confined._worker._process.pid, signal.SIGSTOP)
    confined._worker._seconds = 0.2
    with pytest.raises(TokenizerUnavailable, match=r"The tokenizer's process did not answer within 0\.2 s"):
        confined.encode("dogs", add_special_tokens=True)
    confined._worker._seconds = 60.0
    assert confined.encode("dogs", add_special_tokens=False)


def test_the_end_of_the_server_ends_a_text_that_explodes() -> None:
    tokenizer = wrap(changed({"normalizer": normalizers.Sequence(DOUBLING)}))
    process = tokenizer._confined
    assert process is not None
    process._worker._cpu_seconds = 1000.0
    begun, errors = threading.Event(), []

    def encode() -> None:
        begun.set()
        try:
            tokenizer.encode(RARE)
        except (TokenizationError, TokenizerUnavailable) as error:
            errors.append(error)

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait()
    tokenizer.close()
    thread.join()
    assert len(errors) == 1


@pytest.mark.usefixtures("impatient")
def test_a_file_that_explodes_on_any_text_is_the_operators(tmp_path: Path) -> None:
    doubling = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    known = json.loads(byte_level_backend().to_str())
    fields = {"normalizer": {"type": "Sequence", "normalizers": [doubling] * 40}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(known | fields))
    with pytest.raises(
        TokenizerError, match=r"cannot be used \(TextBeyondLimits: the tokenizer (ran|failed)"
    ) as caught:
        load_tokenizer(tmp_path)
    assert not isinstance(caught.value, TokenizationError)


def test_a_tokenizer_of_known_steps_starts_no_process() -> None:
    tokenizer: Tokenizer = wrap(byte_level_backend())
    assert tokenizer._confined is None
