"""Draft tokens from what a client says that its answer will be."""

import random

from numaserve.server.speculation.drafters.prediction import PredictionDrafter

PROMPT = [1, 2]


def drafts(prediction: list[int], answer: list[int], most: int = 3) -> list[list[int]]:
    """The draft tokens before each token of the answer, and after the last one."""
    drafter = PredictionDrafter(prediction, len(PROMPT))
    return [drafter.draft(PROMPT + answer[:end], most) for end in range(len(answer) + 1)]


def test_the_answer_is_drafted_from_its_beginning_on() -> None:
    assert drafts([5, 6, 7, 8], [5, 6]) == [[5, 6, 7], [6, 7, 8], [7, 8]]


def test_behind_the_end_of_the_text_nothing_is_drafted() -> None:
    assert drafts([5, 6], [5, 6, 7]) == [[5, 6], [6], [], []]


def test_a_place_is_found_again_behind_a_word_that_was_changed() -> None:
    assert drafts([5, 6, 7, 8, 9, 10], [5, 20, 7, 8]) == [[5, 6, 7], [6, 7, 8], [], [8, 9, 10], [9, 10]]


def test_a_place_far_behind_is_found_again_by_two_tokens() -> None:
    text = [5, 6, *range(30, 90), 7, 8, 9]
    assert drafts(text, [5, 20, 7, 8])[2:] == [[], [], [9]]


def test_what_is_matched_begins_anew_where_a_place_is_found_again() -> None:
    drafter, answer, matched = PredictionDrafter([5, 6, 7, 8, 9], len(PROMPT)), [5, 20, 7, 8], []
    for end in range(len(answer) + 1):
        drafter.draft(PROMPT + answer[:end], 1)
        matched.append(drafter.matched)
    assert matched == [2, 3, 3, 1, 2]


def test_the_next_place_with_the_same_tokens_counts_and_else_the_first_one() -> None:
    text = [5, 6, 1, 20, 5, 6, 2, 5, 6, 3]
    assert drafts(text, [5, 6, 1, 9, 5, 6])[-1] == [2, 5, 6]
    assert drafts(text, [5, 6, 1, 20, 5, 6, 2, 5, 6, 3, 5, 6])[-1] == [1, 20, 5]


def test_a_token_is_not_found_where_only_its_bytes_are() -> None:
    assert drafts([0x0100, 0x0001, 7], [0x01000000, 0x010000])[-1] == []


def test_of_an_answer_that_is_resumed_only_the_end_is_looked_for() -> None:
    drafter = PredictionDrafter([5, 6, 7, 8, 9], len(PROMPT))
    assert drafter.draft([*PROMPT, *[30] * 100, 7, 8], 4) == [9]


def test_a_place_far_away_is_not_looked_for() -> None:
    text = [5, 6, *range(100, 9000), 7, 8, 9]
    assert drafts(text, [5, 6, 7, 8])[-1] == []
    assert drafts(text[-3000:], [*text[-3000:-2998], 7, 8])[-1] == [9]


def test_tokens_that_came_between_two_calls_are_followed_too() -> None:
    drafter = PredictionDrafter([5, 6, 7, 8, 9], len(PROMPT))
    assert drafter.draft([*PROMPT, 5, 30, 7, 8], 4) == [9]


def test_it_drafts_a_part_of_the_text_whatever_comes() -> None:
    chance = random.Random(3)
    for _ in range(200):
        text = [chance.randrange(4) for _ in range(chance.randrange(30))]
        drafter, tokens = PredictionDrafter(text, 2), [9, 9]
        for _ in range(40):
            draft = drafter.draft(tokens, 4)
            assert len(draft) <= 4
            assert any(text[at : at + len(draft)] == draft for at in range(len(text) + 1))
            tokens.append(draft[0] if draft and chance.random() < 0.7 else chance.randrange(4))
