"""Masks of one sequence, of every size that a model's logits may have."""

from collections.abc import Callable
from functools import partial

import pytest
from llguidance import LLMatcher, LLTokenizer
from numaserve.server.scheduler.matcher import ConstraintFailed
from numaserve.server.structured.matchers.matcher import GrammarMatcher, mask_bytes
from numaserve.server.structured.parser_limits import new_matcher
from numaserve.server.structured.vocabulary import Vocabulary
from numaserve.server.tokenizer import Tokenizer

from tests.support.masks import allowed
from tests.support.tokenizer_builders import byte_level_backend

_END = 1
_SECOND_END = 300


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(
        byte_level_backend(),
        eos_token_ids=frozenset({_END, _SECOND_END}),
        bos_token_id=0,
        eos_token_id=_END,
        chat_template=None,
    )


@pytest.fixture(scope="module")
def loaded(tokenizer: Tokenizer) -> LLTokenizer:
    return Vocabulary.of(tokenizer, tokenizer.vocab_size).load()


def _matcher(loaded: LLTokenizer, regex: str) -> GrammarMatcher:
    matcher = new_matcher(loaded, LLMatcher.grammar_from_regex(regex))
    assert not matcher.get_error()
    return GrammarMatcher(matcher, loaded.vocab_size, frozenset(loaded.eos_tokens))


def _spelled(tokenizer: Tokenizer, tokens: set[int]) -> set[str]:
    return {tokenizer.token_text(token) for token in tokens - tokenizer.eos_token_ids}


def test_only_tokens_that_the_grammar_continues_with_are_allowed(tokenizer: Tokenizer, loaded: LLTokenizer) -> None:
    matcher = _matcher(loaded, "[xyz]q?")
    assert _spelled(tokenizer, allowed(matcher, tokenizer.vocab_size)) == {"x", "y", "z"}


def test_every_end_token_is_allowed_where_the_grammar_may_end(tokenizer: Tokenizer, loaded: LLTokenizer) -> None:
    matcher = _matcher(loaded, "[xyz]q?")
    assert not allowed(matcher, tokenizer.vocab_size) & tokenizer.eos_token_ids
    matcher.accept(tokenizer.encode("z")[0])
    assert allowed(matcher, tokenizer.vocab_size) == {*tokenizer.encode("q"), _END, _SECOND_END}


def test_only_end_tokens_are_allowed_where_the_grammar_must_end(tokenizer: Tokenizer, loaded: LLTokenizer) -> None:
    matcher = _matcher(loaded, "z")
    matcher.accept(tokenizer.encode("z")[0])
    for _ in range(3):  # a request that ignores the end goes on with it
        assert allowed(matcher, tokenizer.vocab_size) == {_END, _SECOND_END}
        matcher.accept(_SECOND_END)


def test_a_token_that_is_not_allowed_fails_with_a_message_for_the_client(
    tokenizer: Tokenizer, loaded: LLTokenizer
) -> None:
    matcher = _matcher(loaded, "z")
    with pytest.raises(ConstraintFailed, match="allows no continuation of the output") as failure:
        matcher.accept(tokenizer.encode("q")[0])
    assert "\n" not in str(failure.value)
    with pytest.raises(ConstraintFailed):
        allowed(matcher, tokenizer.vocab_size)
    with pytest.raises(ConstraintFailed):
        matcher.accept(_END)


def test_an_end_token_is_not_accepted_early(loaded: LLTokenizer) -> None:
    with pytest.raises(ConstraintFailed):
        _matcher(loaded, "zz").accept(_END)


def test_a_row_that_is_longer_than_the_mask_ends_in_zeros(tokenizer: Tokenizer, loaded: LLTokenizer) -> None:
    nbytes = mask_bytes(tokenizer.vocab_size) + 64
    assert _spelled(tokenizer, allowed(_matcher(loaded, "z"), tokenizer.vocab_size, nbytes=nbytes)) == {"z"}


def test_a_row_that_is_shorter_than_the_mask_has_its_first_bits(tokenizer: Tokenizer, loaded: LLTokenizer) -> None:
    matcher = _matcher(loaded, "[^a]q?")
    whole = allowed(matcher, tokenizer.vocab_size)
    assert any(token >= 128 for token in whole)
    assert allowed(matcher, tokenizer.vocab_size, nbytes=16) == {token for token in whole if token < 128}


@pytest.mark.parametrize(("tokens", "size"), [(1, 4), (32, 4), (33, 8), (49152, 6144)])
def test_masks_are_whole_words(tokens: int, size: int) -> None:
    assert mask_bytes(tokens) == size


def _looking(loaded: LLTokenizer, grammar: str) -> Callable[[], GrammarMatcher]:
    """What makes matchers that can look ahead, and that share what a server's do."""
    whole = new_matcher(loaded, grammar)
    eos, ahead = frozenset(loaded.eos_tokens), partial(new_matcher, loaded, grammar)
    return lambda: GrammarMatcher(whole.deep_copy(), loaded.vocab_size, eos, ahead)


def test_a_fork_goes_its_own_way(tokenizer: Tokenizer, loaded: LLTokenizer) -> None:
    matcher = _looking(loaded, LLMatcher.grammar_from_regex("x(yz|qw)"))()
    matcher.accept(tokenizer.encode("x")[0])
    fork = matcher.fork()
    fork.accept(tokenizer.encode("y")[0])
    assert _spelled(tokenizer, allowed(fork, tokenizer.vocab_size)) == {"z"}
    matcher.accept(tokenizer.encode("q")[0])
    assert _spelled(tokenizer, allowed(matcher, tokenizer.vocab_size)) == {"w"}
    assert _spelled(tokenizer, allowed(matcher.fork(), tokenizer.vocab_size)) == {"w"}


def test_the_only_text_that_may_come_is_told(tokenizer: Tokenizer, loaded: LLTokenizer) -> None:
    matcher = _looking(loaded, LLMatcher.grammar_from_regex("x(yzq|qw)"))()
    assert matcher.forced() == tokenizer.encode("x")
    matcher.accept(tokenizer.encode("x")[0])
    assert matcher.forced() == []
    matcher.accept(tokenizer.encode("y")[0])
    assert matcher.forced() == tokenizer.encode("zq")


def test_so_many_of_some_tokens_as_may_come_next_are_told(tokenizer: Tokenizer, loaded: LLTokenizer) -> None:
    matcher = _looking(loaded, LLMatcher.grammar_from_regex("x(yzq|qw)"))()
    matcher.accept(tokenizer.encode("x")[0])
    told = {text: matcher.would_accept(tokenizer.encode(text)) for text in ("yzq", "yzw", "w", "qwq")}
    assert told == {"yzq": 3, "yzw": 2, "w": 0, "qwq": 2}
    assert matcher.would_accept([*tokenizer.encode("qw"), _SECOND_END]) == 3
    assert matcher.would_accept([]) == 0
    assert _spelled(tokenizer, allowed(matcher, tokenizer.vocab_size)) == {"y", "q"}


def test_of_tokens_that_there_are_not_nothing_is_told(tokenizer: Tokenizer, loaded: LLTokenizer) -> None:
    matcher = _looking(loaded, LLMatcher.grammar_from_regex("[xyz]q?"))()
    with pytest.raises(ConstraintFailed):
        matcher.would_accept([1 << 30])
    matcher.accept(tokenizer.encode("x")[0])
    assert matcher.would_accept(tokenizer.encode("q")) == 1


def test_what_becomes_too_much_for_a_fork_is_not_too_much_for_the_answer(
    tokenizer: Tokenizer, loaded: LLTokenizer
) -> None:
    make = _looking(loaded, LLMatcher.grammar_from_json_schema({"type": "string", "maxLength": 90_000}))
    matcher, quote, letter = make(), tokenizer.encode('"')[0], tokenizer.encode("a")[0]
    matcher.accept(quote)
    fork = matcher.fork()
    with pytest.raises(ConstraintFailed, match="too many states"):
        for index in range(90_000):
            fork.accept(letter)
            if index % 50 == 0:
                allowed(fork, tokenizer.vocab_size)
    matcher.accept(letter)
    matcher.accept(quote)
    assert allowed(matcher, tokenizer.vocab_size) == tokenizer.eos_token_ids
    make().accept(quote)


def test_a_matcher_that_cannot_look_ahead_says_so(loaded: LLTokenizer) -> None:
    for look in (GrammarMatcher.fork, GrammarMatcher.forced, lambda matcher: matcher.would_accept([])):
        with pytest.raises(ConstraintFailed):
            look(_matcher(loaded, "z"))
