"""The way of a sequence along a text."""

import random

from numaserve.server.speculation import match_cursor
from numaserve.server.speculation.match_cursor import MatchCursor

TEXT = list(range(100, 140))


def gone(tokens: list[int], text: list[int] | None = None) -> MatchCursor:
    """A trail along the text, from its beginning, token by token."""
    trail, known = MatchCursor(TEXT if text is None else text, 0, 0, matched=0), list[int]()
    for token in tokens:
        known.append(token)
        trail.follow(known)
    return trail


def test_it_follows_a_text_to_its_end() -> None:
    trail = gone(TEXT)
    assert trail.is_there
    assert (trail.place, trail.matched) == (40, 40)


def test_behind_the_end_it_is_nowhere() -> None:
    assert not gone([*TEXT, 1]).is_there


def test_one_token_brings_it_back_and_two_are_surer() -> None:
    changed = gone([*TEXT[:5], 1, *TEXT[7:8]])
    assert changed.is_there
    assert (changed.place, changed.matched) == (8, 1)
    twice = [1, 2, 3, 9, 4, 9, 5, 6]
    assert gone([1, 2, 3, 8, 9], twice).place == 4
    assert gone([1, 2, 3, 4, 9], [1, 2, 3, 7, 9, 4, 9, 5, 6]).place == 7


def test_left_out_and_put_in_tokens_are_got_over() -> None:
    assert gone([*TEXT[:5], *TEXT[6:9]]).place == 9
    assert gone([*TEXT[:5], 1, 2, 3, *TEXT[5:9]]).place == 9


def test_it_does_not_come_back_far_off_nor_late() -> None:
    far = 5 + match_cursor._AHEAD + 1
    assert gone([*TEXT[:5], TEXT[far - 1]]).is_there
    assert not gone([*TEXT[:5], TEXT[far]]).is_there
    away = [*TEXT[:5], *[1] * (match_cursor._LOST - 1)]
    assert gone([*away, TEXT[6]]).is_there
    assert not gone([*away, 1, TEXT[6]]).is_there


def test_tokens_that_come_at_once_are_followed_like_those_that_come_one_by_one() -> None:
    tokens = [*TEXT[:9], *TEXT[10:12]]
    trail = MatchCursor(TEXT, 0, 0, matched=0)
    trail.follow(tokens)
    assert (trail.place, trail.matched, trail.is_there) == (12, 2, True)


def test_too_many_at_once_are_not_looked_through() -> None:
    text = list(range(1000))
    trail = MatchCursor(text, 0, 0, matched=0)
    trail.follow(text[: match_cursor._MANY + 1])
    assert not trail.is_there


def test_a_sequence_that_repeats_itself_is_not_found_at_its_own_end() -> None:
    tokens = [1, 2, 3, 4, 1, 2]
    trail = MatchCursor(tokens, 2, len(tokens), matched=2)
    tokens += [9]
    trail.follow(tokens)
    assert not trail.is_there


def test_the_place_is_behind_the_last_token_wherever_it_is_there() -> None:
    chance = random.Random(5)
    for _ in range(300):
        text = [chance.randrange(5) for _ in range(chance.randrange(40))]
        trail, tokens = MatchCursor(text, 0, 1, matched=0), [7]
        for _ in range(40):
            tokens.append(chance.randrange(5))
            trail.follow(tokens)
            if trail.is_there:
                assert text[trail.place - trail.matched : trail.place] == tokens[-trail.matched :]
