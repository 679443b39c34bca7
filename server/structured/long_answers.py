"""Simulated long answers, which find grammars that exceed the lexer's limit of states.

The lexer keeps a state for each step of a counted repetition, and a bounded number of states. A grammar such as
`a{1,100000}` compiles within a millisecond and fails in the middle of its answer.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from llguidance import LLMatcher, LLTokenizer
from numaserve.server.structured.json_text import levels

_COUNT = re.compile(r"\{\s*(?:\d*\s*,)?\s*(\d+)\s*\}")
_FEW = 5_000  # repetitions, whose states are far below the limit
_MOST_BYTES = 60_000  # of an answer: more than there are states
# A mask also creates states, for the tokens that may come next, and takes a fraction of a millisecond.
_BYTES_OF_A_MASK = 16
_CHOICES = 8  # choices to begin: a place where many meet is on the way to most of them
_TOKENS_OF_A_CHOICE = 32


def counts_far(text: str) -> bool:
    """Return whether the counts in a regular expression or grammar allow many repetitions when nested."""
    return math.prod(max(1, int(each[:9])) for each in _COUNT.findall(text)) > _FEW


def far_patterns(schema: object) -> list[str]:
    """Return the patterns of a JSON schema with counts that allow many repetitions."""
    objects = (each for level in levels(schema) for each in level if isinstance(each, dict))
    patterns = (each.get("pattern") for each in objects)
    return [each for each in patterns if isinstance(each, str) and counts_far(each)]


def walk(tokenizer: LLTokenizer, make: Callable[[], LLMatcher], beginning: list[int]) -> LLMatcher:
    """Return a matcher of the grammar after a long answer; it has failed if the grammar cannot serve such answers.

    The answer repeats a part of `beginning`, tokens that the grammar allows, until the grammar allows no more.
    """
    matcher = make()
    for start, part in _parts(beginning):
        taken = matcher.try_consume_tokens(beginning[:start])
        if taken == start and _repeats(matcher, part, len(tokenizer.decode_bytes(part))):
            break
        matcher = make()
    return matcher


def begin_choices(tokenizer: LLTokenizer, make: Callable[[], LLMatcher], choices: Sequence[str]) -> LLMatcher:
    """Return a matcher that has begun one of the `choices`; it has failed if too many choices continue at one place."""
    matcher = make()
    for choice in choices[:: 1 + len(choices) // _CHOICES]:
        begun = matcher.deep_copy()
        for token in tokenizer.tokenize_str(choice)[:_TOKENS_OF_A_CHOICE]:
            begun.compute_bitmask()
            if begun.is_error() or not begun.consume_token(token):
                return begun
    return matcher


def _parts(beginning: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield the start and the tokens of each part of `beginning`, the short ones first."""
    for start, end in sorted(combinations(range(len(beginning) + 1), 2), key=lambda each: each[1] - each[0]):
        yield start, beginning[start:end]


def _repeats(matcher: LLMatcher, part: list[int], nbytes: int) -> bool:
    """Feed `part`, which has `nbytes`, repeatedly, and return whether it was accepted twice or more."""
    times_of_a_mask = max(1, _BYTES_OF_A_MASK // max(1, nbytes))
    for time in range(_MOST_BYTES // max(1, nbytes)):
        if time % times_of_a_mask == 0:
            matcher.compute_bitmask()
        if matcher.is_stopped():
            return time > 1
        if matcher.try_consume_tokens(part) < len(part):
            matcher.compute_bitmask()  # fails if the lexer has no states left; the tokens alone do not
            return time > 1
    return True
