"""Draft tokens of a sequence, and how often they are right."""

import pytest
from numaserve.server.speculation.acceptance import AcceptanceRates
from numaserve.server.speculation.constraint import KnownConstraint
from numaserve.server.speculation.sequence_drafts import SequenceDrafts

from tests.support.drafters import Played

VOCABULARY = 100


def drafts(
    matched: int, of_all: AcceptanceRates | None = None, tokens: tuple[int, ...] = (1, 2, 3, 4), **more: int
) -> SequenceDrafts:
    """Those of a drafter, made."""
    drafter = Played(lambda *_: list(tokens), matched=matched)
    made = SequenceDrafts([drafter], of_all or AcceptanceRates(), KnownConstraint())
    made.search([5], VOCABULARY, **more)
    return made


def answer(made: SequenceDrafts, *tokens: int, matched: int) -> None:
    """Answer new draft tokens that follow `matched` matching tokens."""
    made.drafters = [Played(lambda *_: [1, 2, 3, 4], matched=matched)]
    made.search([5], VOCABULARY)
    made.answered(list(tokens))


def test_half_of_them_are_supposed_to_be_right_of_which_nothing_is_known() -> None:
    made = drafts(3)
    assert made.odds == [0.5, 0.25, 0.125, 0.0625]
    assert made.expected(2) == 0.75
    assert made.expected(-1) == 0.0


def test_behind_many_tokens_that_matched_they_are_judged_by_themselves() -> None:
    made = drafts(3)
    for _ in range(40):
        answer(made, 9, matched=3)
        answer(made, 1, 2, 3, 4, matched=20)
    answer(made, 9, matched=3)
    made.search([5], VOCABULARY)
    assert made.odds[0] < 0.05
    answer(made, matched=20)
    assert made.odds[3] > 0.9
    assert made.hope > 0.9


def test_what_was_right_long_ago_is_not_hoped_for() -> None:
    made = drafts(20)
    for _ in range(40):
        answer(made, 1, 2, 3, 4, matched=20)
    for _ in range(40):
        answer(made, 9, matched=3)
    assert made.hope < 0.1
    answer(made, matched=20)
    assert made.hope > 0.9  # as soon as it is found


def test_each_that_is_right_lets_the_next_one_match_more() -> None:
    made = drafts(3)
    for _ in range(40):
        answer(made, 9, matched=3)
    answer(made, matched=3)
    # Of those behind four tokens nothing was seen.
    assert made.odds[1] == pytest.approx(made.odds[0] * 0.5)
    answer(made, 1, 2, matched=3)
    assert made.tokens == [3, 4]
    assert made.odds[0] > 0.5


def test_what_was_seen_in_other_sequences_is_supposed_of_a_new_one() -> None:
    of_all = AcceptanceRates()
    old = drafts(20, of_all)
    for _ in range(100):
        answer(old, 1, 2, 3, 9, matched=20)
    assert drafts(20, of_all).odds[0] == pytest.approx(0.75, abs=0.05)
    assert drafts(20).odds[0] == 0.5


def test_a_sequence_goes_by_what_was_seen_of_itself() -> None:
    of_all = AcceptanceRates()
    bad, good = drafts(3, of_all), drafts(3, of_all)
    for _ in range(30):
        answer(bad, 9, matched=3)
        answer(good, 1, 9, matched=3)
    answer(good, matched=3)
    answer(bad, matched=3)
    assert bad.odds[0] < 0.1
    assert good.odds[0] > 0.9


def test_a_draft_token_beyond_the_vocabulary_ends_them() -> None:
    assert drafts(3, tokens=(1, VOCABULARY, 2)).tokens == [1]


def test_the_placeholder_of_images_ends_them() -> None:
    assert drafts(3, tokens=(1, 2, 7, 7, 3), placeholder=7).tokens == [1, 2]
    assert drafts(3, tokens=(7, 1), placeholder=7).tokens == []
