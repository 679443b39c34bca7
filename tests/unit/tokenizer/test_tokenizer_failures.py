"""A tokenizer.json that makes the library panic, which in Python is an exception that is no `Exception`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from numaserve.server.tokenizer import Tokenizer, load_tokenizer
from numaserve.server.tokenizer.types import TokenizationError, TokenizerError
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers

from tests.support.tokenizer_builders import byte_level_backend, wrap

CATASTROPHIC = Regex("(x+)+$")  # all ways to cut a run of x are tried when something follows it
TRIGGER = "x" * 40 + "!"


def splitting() -> Tokenizer:
    backend = byte_level_backend()
    split = pre_tokenizers.Split(CATASTROPHIC, "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return wrap(backend)


def normalizing() -> Tokenizer:
    backend = byte_level_backend()
    backend.normalizer = normalizers.Replace(CATASTROPHIC, "y")
    return wrap(backend)


@pytest.mark.parametrize("make", [splitting, normalizing])
def test_a_text_on_which_the_expression_backtracks_too_long_is_an_error_that_can_be_handled(
    make: Callable[[], Tokenizer],
) -> None:
    tokenizer = make()
    with pytest.raises(TokenizationError, match=r"fails on this input: .*retry-limit"):
        tokenizer.encode(TRIGGER)
    assert tokenizer.decode(tokenizer.encode("xx brown dogs")) == "xx brown dogs"


def test_tokens_on_which_the_decoder_backtracks_too_long_are_too() -> None:
    backend = byte_level_backend()
    backend.add_tokens([AddedToken(TRIGGER)])
    backend.decoder = decoders.Sequence([decoders.Replace(CATASTROPHIC, ""), decoders.ByteLevel()])
    tokenizer = wrap(backend)
    with pytest.raises(TokenizationError, match="retry-limit"):
        tokenizer.decode([backend.token_to_id(TRIGGER)])
    assert tokenizer.decode(tokenizer.encode("dogs")) == "dogs"


def test_a_conversation_is_no_other_way_to_it() -> None:
    backend = byte_level_backend()
    backend.normalizer = normalizers.Replace(CATASTROPHIC, "y")
    tokenizer = wrap(backend, "{% for m in messages %}{{ m['content'] }}{% endfor %}")
    with pytest.raises(TokenizationError, match="retry-limit"):
        tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": TRIGGER}]))


def test_a_mistake_of_the_caller_stays_what_it_is() -> None:
    with pytest.raises(OverflowError):
        wrap(byte_level_backend()).decode([-1])


UNSOUND: dict[str, dict[str, object]] = {
    "a character map that is cut off": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
    "a map that points outside itself": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAGFiY2Q="}},
    "pieces of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "a token that is not listed": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    },
    "more to strip than there is": {
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Strip", "content": "a", "start": 0, "stop": 2**64 - 1},
                {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            ],
        }
    },
}


@pytest.mark.parametrize("fields", UNSOUND.values(), ids=UNSOUND)
def test_a_file_that_the_library_fails_on_is_the_operators(fields: dict[str, object], tmp_path: Path) -> None:
    known = json.loads(byte_level_backend().to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps(known | fields))
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, TokenizationError)


@pytest.mark.parametrize("config", [{"added_tokens_decoder": ["a"]}, {"added_tokens_decoder": {"x": {}}}])
def test_a_configuration_of_wrong_types_is_the_operators_too(config: dict[str, object], tmp_path: Path) -> None:
    byte_level_backend().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerError, match="cannot be used"):
        load_tokenizer(tmp_path)
