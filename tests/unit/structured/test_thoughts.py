"""What comes before an answer: free thoughts, thoughts that are closed, and none."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from numaserve.server.scheduler.matcher import ConstraintFailed, TokenMatcher
from numaserve.server.structured.matchers.matcher import GrammarMatcher
from numaserve.server.structured.parser_limits import new_matcher
from numaserve.server.structured.thought import Thought, after_thought, closing_thought
from numaserve.server.structured.types import MatcherFactory
from numaserve.server.tokenizer import Tokenizer

from tests.support.masks import allowed

_BEGIN = 0  # `<s>`, as any special token may begin a thought


@pytest.fixture
def answer(loaded: LLTokenizer, tokenizer: Tokenizer) -> MatcherFactory:
    """Matchers of the answer `12`."""

    def make() -> TokenMatcher:
        matcher = new_matcher(loaded, LLMatcher.grammar_from_regex("12"))
        return GrammarMatcher(matcher, loaded.vocab_size, tokenizer.eos_token_ids)

    return make


def _take(matcher: TokenMatcher, tokenizer: Tokenizer, text: str) -> None:
    for token in tokenizer.encode(text, add_special_tokens=False):
        assert token in allowed(matcher, tokenizer.vocab_size)
        matcher.accept(token)


def _is_free(matcher: TokenMatcher, tokenizer: Tokenizer) -> bool:
    return len(allowed(matcher, tokenizer.vocab_size)) == tokenizer.vocab_size


def _is_at_the_answer(matcher: TokenMatcher, tokenizer: Tokenizer) -> bool:
    spelled = {tokenizer.token_text(token) for token in allowed(matcher, tokenizer.vocab_size)}
    return spelled <= {"1", "12"}


def test_a_thought_is_free_and_the_answer_is_not(answer: MatcherFactory, tokenizer: Tokenizer) -> None:
    matcher = after_thought(answer, Thought("</think>", tokenizer.token_bytes))()
    _take(matcher, tokenizer, "let me < think </thin")
    assert _is_free(matcher, tokenizer)
    _take(matcher, tokenizer, "</think>")
    assert _is_at_the_answer(matcher, tokenizer)
    _take(matcher, tokenizer, "12")
    assert allowed(matcher, tokenizer.vocab_size) == tokenizer.eos_token_ids


def test_draft_tokens_are_told_forbidden_where_the_answer_has_begun(loaded: LLTokenizer, tokenizer: Tokenizer) -> None:
    def make() -> TokenMatcher:
        ahead = partial(new_matcher, loaded, LLMatcher.grammar_from_regex("12"))
        return GrammarMatcher(ahead(), loaded.vocab_size, tokenizer.eos_token_ids, ahead)

    matcher, drafts = after_thought(make, Thought("</think>", tokenizer.token_bytes))(), tokenizer.encode("13")
    assert matcher.would_accept(drafts) == len(drafts) == 2
    _take(matcher, tokenizer, "</think>")
    assert matcher.would_accept(drafts) == 1


@given(st.text(alphabet="</think> x", max_size=30).filter(lambda text: "</think>" not in text + "</think>"[:-1]))
def test_the_end_of_a_thought_is_found_wherever_tokens_are_cut(text: str) -> None:
    class Never:
        def accept(self, token: int) -> None:
            raise AssertionError

        def write_mask(self, address: int, nbytes: int) -> None:
            raise ConstraintFailed("answer")

    for size in (1, 2, 3, 5):
        whole = (text + "</think>").encode()
        pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
        matcher = after_thought(Never, Thought("</think>", pieces.__getitem__))()
        for i in range(len(pieces)):
            allowed(matcher, 8)
            matcher.accept(i)
        with pytest.raises(ConstraintFailed, match="answer"):
            allowed(matcher, 8)


def test_the_model_may_answer_without_a_thought(answer: MatcherFactory, tokenizer: Tokenizer) -> None:
    thought = Thought("</s>", tokenizer.token_bytes, begin=_BEGIN)
    matcher = after_thought(answer, thought)()
    first = allowed(matcher, tokenizer.vocab_size)
    assert _BEGIN in first and not _is_free(matcher, tokenizer)
    matcher.accept(min(first - {_BEGIN}))
    assert _BEGIN not in allowed(matcher, tokenizer.vocab_size)


def test_the_model_may_begin_a_thought(answer: MatcherFactory, tokenizer: Tokenizer) -> None:
    matcher = after_thought(answer, Thought("</think>", tokenizer.token_bytes, begin=_BEGIN))()
    matcher.accept(_BEGIN)
    assert _is_free(matcher, tokenizer)
    _take(matcher, tokenizer, "x</think>")
    assert _is_at_the_answer(matcher, tokenizer)


def _closing(tokenizer: Tokenizer, max_tokens: int) -> Thought:
    closing = tuple(tokenizer.encode("\n</think>", add_special_tokens=False))
    return Thought("</think>", tokenizer.token_bytes, max_tokens=max_tokens, closing=closing)


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_a_thought_is_closed_after_its_tokens(answer: MatcherFactory, tokenizer: Tokenizer, max_tokens: int) -> None:
    thought = _closing(tokenizer, max_tokens)
    matcher = after_thought(answer, thought)()
    for token in [ord(letter) for letter in "QZX"][:max_tokens]:
        assert _is_free(matcher, tokenizer)
        matcher.accept(token)
    for token in thought.closing:
        assert allowed(matcher, tokenizer.vocab_size) == {token}
        matcher.accept(token)
    assert _is_at_the_answer(matcher, tokenizer)


def test_an_answer_without_a_grammar_is_free_after_the_closed_thought(tokenizer: Tokenizer) -> None:
    thought = _closing(tokenizer, 0)
    matcher = closing_thought(thought)()
    for token in thought.closing:
        matcher.accept(token)
    assert _is_free(matcher, tokenizer)
    matcher.accept(5)


def test_a_thought_that_ends_by_itself_is_not_closed(tokenizer: Tokenizer) -> None:
    matcher = closing_thought(_closing(tokenizer, 40))()
    _take(matcher, tokenizer, "a</think>" + "b" * 60)
    assert _is_free(matcher, tokenizer)


def test_a_token_that_does_not_close_a_long_thought_fails(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConstraintFailed, match="reached its token limit, and the model did not end it"):
        closing_thought(_closing(tokenizer, 0))().accept(3)


@pytest.mark.parametrize(("after", "fails"), [(b"\n\n", False), (b"{", True)])
def test_text_in_the_token_that_ends_the_thought(answer: MatcherFactory, after: bytes, fails: bool) -> None:
    matcher = after_thought(answer, Thought("</t>", lambda _: b"</t>" + after))()
    if fails:
        with pytest.raises(ConstraintFailed, match="The token that ends the reasoning also contains"):
            matcher.accept(0)
    else:
        matcher.accept(0)


def test_a_marker_that_the_model_has_no_logit_for_fails(answer: MatcherFactory, tokenizer: Tokenizer) -> None:
    thought = Thought("</s>", tokenizer.token_bytes, begin=tokenizer.vocab_size + 64)
    with pytest.raises(ConstraintFailed, match="no token"):
        allowed(after_thought(answer, thought)(), tokenizer.vocab_size)
