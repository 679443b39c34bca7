"""Guesses from what a text has said before."""

import random

from numaserve.server.speculation import suffix
from numaserve.server.speculation.suffix import SuffixDrafter


def test_it_continues_as_the_same_tokens_went_on_before() -> None:
    assert SuffixDrafter().guess([1, 2, 3, 4, 5, 6, 1, 2, 3], 2) == [4, 5]


def test_nothing_is_guessed_where_nothing_has_come_before() -> None:
    drafter = SuffixDrafter()
    assert drafter.guess([], 4) == []
    assert drafter.guess([1, 2], 4) == []
    assert drafter.guess([1, 2, 3, 4, 5], 4) == []


def test_two_tokens_in_common_are_too_few() -> None:
    assert SuffixDrafter().guess([1, 2, 3, 4, 9, 2, 3], 4) == []


def test_the_longest_match_wins_and_of_equal_ones_the_latest() -> None:
    assert SuffixDrafter().guess([7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 7, 1, 2, 3], 1) == [4]
    assert SuffixDrafter().guess([7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 1, 2, 3], 1) == [5]


def test_what_repeats_is_guessed_as_far_as_is_wanted() -> None:
    assert SuffixDrafter().guess([5, 1, 2, 3, 1, 2, 3], 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_a_text_that_grows_gives_the_guesses_of_the_whole_text() -> None:
    chance = random.Random(3)
    text = [chance.randrange(3) for _ in range(400)]
    grown = SuffixDrafter()
    for end in range(0, len(text), 7):
        assert grown.guess(text[:end], 5) == SuffixDrafter().guess(text[:end], 5)


def test_a_long_text_is_taken_in_piece_by_piece_and_gives_guesses_when_all_is_known() -> None:
    text = [*range(suffix._AT_ONCE), *range(10)]
    drafter = SuffixDrafter()
    assert drafter.guess(text, 3) == []
    assert drafter.guess(text, 3) == [10, 11, 12]
