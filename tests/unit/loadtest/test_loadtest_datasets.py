"""Prompts have exactly the lengths that are asked for, and the same seed gives the same ones."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from numaserve.server.loadtest.options import DatasetName, Workload
from numaserve.server.loadtest.workload.dataset import make_requests
from numaserve.server.loadtest.workload.prompts import FIRST_ID, WORDS, TokenFiller, WordFiller, estimate_tokens
from numaserve.server.loadtest.workload.requests import BenchRequest

RANDOM = Workload(num_prompts=20, random_input_len=50, random_output_len=10)
SHARED = Workload(
    DatasetName.SHARED_PREFIX,
    gsp_num_groups=3,
    gsp_prompts_per_group=4,
    gsp_system_prompt_len=40,
    gsp_question_len=7,
    gsp_output_len=5,
)


async def clumsy_count(text: str) -> int:
    """Tokens of a tokenizer that begins texts with a special token and splits long words."""
    return 1 + sum(1 + (len(word) > 5) for word in text.split())


def ids(workload: Workload, seed: int = 1, vocab_size: int | None = None) -> list[BenchRequest]:
    return asyncio.run(make_requests(workload, TokenFiller(vocab_size), estimate_tokens, seed))


def words(workload: Workload, seed: int = 1) -> list[BenchRequest]:
    return asyncio.run(make_requests(workload, WordFiller(clumsy_count), clumsy_count, seed))


@pytest.mark.parametrize("workload", [RANDOM, SHARED])
@pytest.mark.parametrize("make", [ids, words])
def test_the_same_seed_gives_the_same_requests_and_another_one_others(make: object, workload: Workload) -> None:
    assert callable(make)
    assert make(workload, 7) == make(workload, 7)
    assert make(workload, 7) != make(workload, 8)


def test_a_range_ratio_of_one_makes_all_prompts_equally_long() -> None:
    requests = ids(RANDOM)
    assert len(requests) == 20
    assert {(len(each.prompt), each.input_tokens, each.output_tokens) for each in requests} == {(50, 50, 10)}


def test_lengths_reach_from_the_ratio_to_the_longest() -> None:
    requests = ids(replace(RANDOM, num_prompts=2000, random_range_ratio=0.5))
    assert {each.input_tokens for each in requests} == set(range(25, 51))
    assert {each.output_tokens for each in requests} == set(range(5, 11))
    assert all(len(each.prompt) == each.input_tokens for each in requests)


def test_a_range_ratio_of_zero_still_asks_for_a_token() -> None:
    requests = ids(replace(RANDOM, num_prompts=500, random_range_ratio=0.0))
    assert min(each.input_tokens for each in requests) == 1
    assert min(each.output_tokens for each in requests) == 1


def test_ids_are_in_the_vocabulary_and_no_control_tokens() -> None:
    drawn = {token for each in ids(replace(RANDOM, num_prompts=300), vocab_size=1000) for token in each.prompt}
    assert min(drawn) == FIRST_ID
    assert max(drawn) == 999


def test_a_tiny_vocabulary_has_ids_too() -> None:
    drawn = {token for each in ids(RANDOM, vocab_size=64) for token in each.prompt}
    assert drawn == set(range(32, 64))


@pytest.mark.parametrize("length", [2, 3, 17, 400])
def test_words_come_to_exactly_the_tokens_that_are_asked_for(length: int) -> None:
    for request in words(replace(RANDOM, random_input_len=length)):
        assert isinstance(request.prompt, str)
        assert asyncio.run(clumsy_count(request.prompt)) == length


def test_without_a_tokenizer_a_word_is_taken_for_a_token() -> None:
    filled = asyncio.run(WordFiller().fill(30, np.random.default_rng(0)))
    assert len(filled) == 30
    assert set(filled) <= set(WORDS)


def test_questions_of_a_group_share_their_system_prompt_and_nothing_else() -> None:
    requests = ids(SHARED)
    prefixes = [tuple(each.prompt[:40]) for each in requests]
    assert len(requests) == 12
    assert {len(each.prompt) for each in requests} == {47}
    assert sorted(prefixes.count(prefix) for prefix in set(prefixes)) == [4, 4, 4]
    assert len({tuple(each.prompt) for each in requests}) == 12


def test_groups_are_shuffled() -> None:
    prefixes = [tuple(each.prompt[:40]) for each in ids(SHARED)]
    assert prefixes != sorted(prefixes, key=prefixes.index)


def test_shared_prefixes_of_words_are_exact_too() -> None:
    for request in words(SHARED):
        assert isinstance(request.prompt, str)
        assert asyncio.run(clumsy_count(request.prompt)) == 47


def test_num_prompts_limits_the_questions_of_all_groups() -> None:
    assert len(ids(replace(SHARED, num_prompts=5))) == 5
