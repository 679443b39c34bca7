"""Draft tokens from what texts have said before."""

import random
import tracemalloc
from array import array
from collections.abc import Callable

import pytest
from numaserve.server.scheduler.cache.scope import COMMON_SCOPE, CacheScope
from numaserve.server.speculation.drafters import suffix
from numaserve.server.speculation.drafters.suffix import Corpus, SuffixDrafter


def drafted(text: list[int], most: int, corpus: Corpus | None = None, scope: CacheScope = COMMON_SCOPE) -> list[int]:
    corpus = corpus or Corpus()
    corpus.begin_step()
    return SuffixDrafter(corpus, scope.digest).draft(text, most)


def test_it_continues_as_the_same_tokens_went_on_before() -> None:
    assert drafted([1, 2, 3, 4, 5, 6, 1, 2, 3], 2) == [4, 5]


def test_nothing_is_drafted_where_nothing_has_come_before() -> None:
    corpus, text = Corpus(), list[int]()
    corpus.begin_step()
    drafter = SuffixDrafter(corpus, "")
    for token in range(6):
        assert drafter.draft(text, 4) == []
        text.append(token)


def test_two_tokens_in_common_are_too_few() -> None:
    assert drafted([1, 2, 3, 4, 9, 2, 3], 4) == []


def test_the_longest_match_wins_and_of_equal_ones_the_latest() -> None:
    assert drafted([7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 7, 1, 2, 3], 1) == [4]
    assert drafted([7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 1, 2, 3], 1) == [5]


def test_what_repeats_is_drafted_as_far_as_is_wanted() -> None:
    assert drafted([5, 1, 2, 3, 1, 2, 3], 8) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert drafted([5, 5, 5, 5, 5], 3) == [5, 5, 5]


def test_a_text_that_grows_gives_the_draft_tokens_of_the_whole_text() -> None:
    chance = random.Random(3)
    corpus, text = Corpus(), [1]
    drafter = SuffixDrafter(corpus, "")
    for _ in range(300):
        corpus.begin_step()
        text += [chance.randrange(3) for _ in range(chance.randrange(1, 5))]
        whole = drafted(text.copy(), 5)
        told = drafter.draft(text, 5)  # something also where it goes on along a text that it has left for a token
        assert told == whole or not whole


def test_a_long_text_is_taken_in_piece_by_piece_and_gives_draft_tokens_when_all_is_known() -> None:
    text = [*range(suffix._A_STEP), *range(10)]
    corpus = Corpus()
    drafter = SuffixDrafter(corpus, "")
    corpus.begin_step()
    assert drafter.draft(text, 3) == []
    assert drafter.draft(text, 3) == []
    corpus.begin_step()
    assert drafter.draft(text, 3) == [10, 11, 12]


def test_behind_a_word_that_is_changed_one_token_tells_where_it_goes_on() -> None:
    corpus, text = Corpus(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 50]
    drafter, told = SuffixDrafter(corpus, ""), []
    for token in (1, 2, 3, 40, 5, 6):
        text.append(token)
        corpus.begin_step()
        told.append((drafter.draft(text, 2), drafter.matched))
    assert told[2:] == [([4, 5], 3), ([], 3), ([6, 7], 1), ([7, 8], 2)]


def test_a_longer_match_elsewhere_ends_the_way_along_a_text() -> None:
    corpus = Corpus()
    drafted([6, 7, 8, 9, 10, 11, 12], 1, corpus)
    drafted([1, 2, 3, 4, 5, 10, 6], 1, corpus)
    drafter, text = SuffixDrafter(corpus, ""), [1, 2, 3]
    assert drafter.draft(text, 2) == [4, 5]
    text += [6, 7, 8]
    assert drafter.draft(text, 2) == [9, 10]
    text += [40]
    assert drafter.draft(text, 2) == []
    text += [10]
    assert drafter.draft(text, 2) == [11, 12]  # it is the other text that is left and found again


def test_another_text_is_let_go_when_it_is_lost() -> None:
    corpus = Corpus()
    drafted([1, 2, 3, 4, 5], 1, corpus)
    drafter, text = SuffixDrafter(corpus, ""), [1, 2, 3]
    assert drafter.draft(text, 2) == [4, 5]
    for token in range(40, 60):
        text.append(token)
        corpus.begin_step()
        assert drafter.draft(text, 2) == []
    assert drafter._cursor is None


def test_what_others_said_is_known_but_not_what_they_have_not_said() -> None:
    corpus = Corpus()
    drafted([1, 2, 3, 4, 5], 9, corpus)
    assert drafted([9, 1, 2, 3], 9, corpus) == [4, 5]


def test_nobody_learns_what_was_said_in_another_scope() -> None:
    corpus = Corpus()
    scopes = [CacheScope(group, salt) for group in ("", "team") for salt in ("", "tenant")]
    for last, scope in enumerate(scopes):
        assert drafted([9, 1, 2, 3], 9, corpus, scope) == []
        drafted([1, 2, 3, 10 + last], 9, corpus, scope)
    assert [drafted([9, 1, 2, 3], 9, corpus, scope) for scope in scopes] == [[10], [11], [12], [13]]


def test_no_more_than_two_generations_of_keys_are_kept() -> None:
    corpus = Corpus(generation=100)
    drafted([-1, -2, -3, -4], 1, corpus)
    drafted(list(range(150)), 1, corpus)
    assert drafted([-1, -2, -3], 1, corpus) == [-4]
    drafted(list(range(1000, 2000)), 1, corpus)
    assert drafted([-1, -2, -3], 1, corpus) == []
    for begin in range(3000, 9000, 60):
        drafted(list(range(begin, begin + 60)), 1, corpus)
    assert len(corpus._young) + len(corpus._old) <= 300
    assert len(corpus._texts) <= 8


FEEDS: dict[str, Callable[[int], tuple[range, str]]] = {  # the tokens and the salt of each text
    "equal texts": lambda _: (range(1000, 1700), ""),
    "distinct texts": lambda number: (range(number * 700, number * 700 + 700), ""),
    "a prompt and distinct answers": lambda number: (range(50_000 - 650, 50_000 + number), ""),
    "short texts": lambda _: (range(1000, 1004), ""),
    "salts": lambda number: (range(1000, 1004), f"{number:0255}\N{GRINNING FACE}"),
}


@pytest.mark.parametrize("feed", FEEDS.values(), ids=FEEDS)
def test_the_memory_is_bounded_whatever_is_taken_in(feed: Callable[[int], tuple[range, str]]) -> None:
    def take_in(number: int) -> None:
        tokens, salt = feed(number)
        drafted(array("i", tokens).tolist(), 1, corpus, CacheScope(salt=salt))  # numbers of its own, as a request has

    corpus = Corpus(generation=1000)
    tracemalloc.start()
    try:
        for number in range(3000 if len(feed(0)[0]) < 100 else 60):
            take_in(number)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 900_000  # as full generations and texts take


def test_of_equal_texts_the_latest_are_held() -> None:
    corpus = Corpus(generation=100)
    for _ in range(20):
        drafted(list(range(60)), 1, corpus)
    assert drafted([0, 1, 2], 3, corpus) == [3, 4, 5]
    assert len(corpus._texts) < 6


def test_a_text_that_is_longer_than_all_may_be_is_held_alone() -> None:
    corpus = Corpus(generation=100)
    drafted([7, 8, 9], 1, corpus)
    assert drafted([*range(1000), *range(5)], 2, corpus) == [5, 6]
    assert len(corpus._texts) == 1
    drafted([7, 8, 9], 1, corpus)
    assert len(corpus._texts) == 1


def test_a_sequence_that_went_for_the_sake_of_others_comes_back_without_being_taken_in_again() -> None:
    corpus = Corpus(generation=1000)
    drafter, text = SuffixDrafter(corpus, ""), [*range(300), *range(5)]
    corpus.begin_step()
    assert drafter.draft(text, 1) == [5]
    while len(drafted([7, 8, 9, 10], 1, corpus)) or drafter._text in corpus._texts.values():
        pass
    text += [5, 6]
    corpus._left = 2  # tokens that may be taken in
    assert drafter.draft(text, 2) == [7, 8]


def test_a_sequence_that_was_forgotten_while_it_rested_is_taken_in_anew() -> None:
    corpus = Corpus(generation=100)
    corpus.begin_step()
    text = [*range(10), *range(5)]
    drafter = SuffixDrafter(corpus, "")
    assert drafter.draft(text, 2) == [5, 6]
    for begin in (1000, 2000, 3000):
        drafted(list(range(begin, begin + 150)), 1, corpus)
    text += [5, 6]
    corpus.begin_step()
    assert drafter.draft(text, 2) == [7, 8]


def test_of_a_key_that_comes_often_the_latest_places_are_tried() -> None:
    corpus = Corpus()
    drafted([token for each in range(100) for token in (1, 2, 3, each)], 1, corpus)
    assert [text.tokens[place] for text, place in corpus.find("", [1, 2, 3])] == [99, 98, 97, 96]


def test_a_step_takes_in_so_much_of_all_texts_together() -> None:
    corpus = Corpus()
    half = suffix._A_STEP // 2 + 100
    drafters = [SuffixDrafter(corpus, CacheScope(salt=salt).digest) for salt in "ab"]
    texts = [[*range(half), *range(5)] for _ in drafters]
    corpus.begin_step()
    assert [drafter.draft(text, 1) for drafter, text in zip(drafters, texts, strict=True)] == [[5], []]
    corpus.begin_step()
    assert [drafter.draft(text, 1) for drafter, text in zip(drafters, texts, strict=True)] == [[5], [5]]
