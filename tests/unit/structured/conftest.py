"""One tokenizer for all, and whether a constraint lets a text through."""

import json
from collections.abc import Callable
from typing import TypeAlias

import pytest
from llguidance import LLTokenizer
from numaserve.server.structured.complaints import refusal
from numaserve.server.structured.matchers.matcher import GrammarMatcher
from numaserve.server.structured.parser_limits import new_matcher
from numaserve.server.structured.translate import to_llguidance
from numaserve.server.structured.types import Constraint, ConstraintKind, Limits
from numaserve.server.structured.vocabulary import Vocabulary
from numaserve.server.tokenizer import Tokenizer

from tests.support.masks import matches
from tests.support.tokenizer_builders import byte_level_backend, wrap

Match: TypeAlias = Callable[[ConstraintKind, object, str], bool]


@pytest.fixture(scope="package")
def tokenizer() -> Tokenizer:
    return wrap(byte_level_backend())


@pytest.fixture(scope="package")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary.of(tokenizer, tokenizer.vocab_size)


@pytest.fixture(scope="package")
def loaded(vocabulary: Vocabulary) -> LLTokenizer:
    return vocabulary.load()


@pytest.fixture
def match(tokenizer: Tokenizer, vocabulary: Vocabulary, loaded: LLTokenizer) -> Match:
    """Whether a constraint of that kind, whose text may be given as a value, lets a text through."""

    def match(kind: ConstraintKind, content: object, text: str) -> bool:
        constraint = Constraint(kind, content if isinstance(content, str) else json.dumps(content))
        matcher = new_matcher(loaded, to_llguidance(constraint, vocabulary.special, Limits()))
        if matcher.is_error():
            raise refusal(matcher.get_error())
        return matches(GrammarMatcher(matcher, loaded.vocab_size, tokenizer.eos_token_ids), tokenizer, text)

    return match
