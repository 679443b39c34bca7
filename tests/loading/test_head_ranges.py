"""The query heads and KV heads of ranks, where ranks divide the query heads of a KV head."""

from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from numaserve.kernels import Team
from numaserve.workers.layers.axes import (
    BorrowingHeads,
    HeadRanges,
    KvHeads,
    QueryHeads,
    attention_heads,
    split_heads,
)
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.mixers.query_key_norms import AllHeadsNorms
from numaserve.workers.models.load import load_model_config

from tests.support import checkpoints
from tests.support.configured import configured
from tests.support.loaded import load_part
from tests.support.reference_group import run_group

RANKS = st.lists(st.integers(1, 128), min_size=1, max_size=9)
SIX_NODES = [43, 43, 42, 43, 43, 42]  # cores of two Xeon 6980P


def largest(heads: HeadRanges, shares: list[int]) -> Fraction:
    """The most query heads of a rank for each of its cores."""
    return max(Fraction(len(query), share) for (query, _), share in zip(heads, shares, strict=True))


def fullest(heads: HeadRanges) -> int:
    return max(len(kv) for _, kv in heads)


@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "shares", "query", "kv"),
    [
        (64, 8, SIX_NODES, [11, 11, 10, 11, 11, 10], [(0, 2), (1, 3), (2, 4), (4, 6), (5, 7), (6, 8)]),
        (32, 8, SIX_NODES, [6, 6, 5, 5, 5, 5], [(0, 2), (1, 3), (3, 5), (4, 6), (5, 7), (6, 8)]),
        (40, 8, SIX_NODES, [7, 7, 6, 7, 7, 6], [(0, 2), (1, 3), (2, 4), (4, 6), (5, 7), (6, 8)]),
        (16, 4, [1, 1, 1], [6, 5, 5], [(0, 2), (1, 3), (2, 4)]),
        (9, 3, [1, 1], [5, 4], [(0, 2), (1, 3)]),
        # Fewer KV heads than ranks: the larger ranks have the KV heads that one rank has alone.
        (64, 4, SIX_NODES, [16, 16, 8, 8, 8, 8], [(0, 1), (1, 2), (2, 3), (2, 3), (3, 4), (3, 4)]),
        (12, 2, [2, 1, 1], [6, 3, 3], [(0, 1), (1, 2), (1, 2)]),
    ],
)
def test_query_heads_are_divided_evenly(
    q_heads: int, kv_heads: int, shares: list[int], query: list[int], kv: list[tuple[int, int]]
) -> None:
    heads = split_heads(q_heads, kv_heads, shares, cuts_groups=True)
    assert [len(own) for own, _ in heads] == query
    assert [(own.start, own.stop) for _, own in heads] == kv


@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "shares"),
    [
        *((64, 8, [1] * world) for world in (1, 2, 3, 4, 8, 16)),
        *((32, 8, [cores] * world) for world in (2, 4, 8) for cores in (16, 43)),
        (64, 8, [43, 42]),
        (24, 8, [1] * 5),
        (32, 32, SIX_NODES),
        (2, 2, [1, 1, 1]),
    ],
)
def test_heads_are_divided_by_kv_head_where_no_part_would_be_smaller(
    q_heads: int, kv_heads: int, shares: list[int]
) -> None:
    assert split_heads(q_heads, kv_heads, shares, cuts_groups=True) == split_heads(q_heads, kv_heads, shares)


@given(kv_heads=st.integers(1, 16), group=st.integers(1, 12), shares=RANKS)
def test_a_rank_has_the_kv_heads_of_its_query_heads_and_no_more_than_with_whole_groups(
    kv_heads: int, group: int, shares: list[int]
) -> None:
    cut = split_heads(kv_heads * group, kv_heads, shares, cuts_groups=True)
    whole = split_heads(kv_heads * group, kv_heads, shares)
    assert [head for query, _ in cut for head in query] == list(range(kv_heads * group))
    assert all(sorted({head // group for head in query}) == list(kv) for query, kv in cut)
    assert fullest(cut) <= fullest(whole)
    assert cut == whole or largest(cut, shares) < largest(whole, shares)
    if kv_heads * group >= len(shares):
        assert all(query for query, _ in cut)


@given(
    kv_heads=st.integers(1, 4),
    group=st.integers(1, 4),
    shares=st.lists(st.integers(1, 6), min_size=2, max_size=3),
)
def test_no_other_division_has_a_smaller_largest_part(kv_heads: int, group: int, shares: list[int]) -> None:
    count = kv_heads * group
    most = fullest(split_heads(count, kv_heads, shares))
    found = split_heads(count, kv_heads, shares, cuts_groups=True)
    for stops in combinations(range(1, count), len(shares) - 1):
        bounds = list(zip((0, *stops), (*stops, count), strict=True))
        other = [(range(*each), range(each[0] // group, -(-each[1] // group))) for each in bounds]
        assert fullest(other) > most or largest(other, shares) >= largest(found, shares)


@given(kv_heads=st.integers(1, 16), group=st.integers(1, 12), shares=RANKS)
def test_a_kv_head_that_several_ranks_hold_is_one_ranks_own(kv_heads: int, group: int, shares: list[int]) -> None:
    model = configured(num_attention_heads=kv_heads * group, num_key_value_heads=kv_heads, num_hidden_layers=1)
    _, axis = attention_heads(kv_heads * group, kv_heads, 64)
    ranks = model.partition(shares).ranks
    assert [head for rank in ranks for head in rank.own(axis)] == list(range(kv_heads))
    # The kernels take the last columns of a rank as its own.
    assert all(not rank.own(axis) or rank.own(axis).stop == rank.along(axis).stop for rank in ranks)


@given(kv_heads=st.integers(1, 12), group=st.integers(1, 12), borrowing=st.integers(1, 8), shares=RANKS)
def test_query_heads_that_borrow_a_cache_are_where_their_kv_heads_are(
    kv_heads: int, group: int, borrowing: int, shares: list[int]
) -> None:
    lender, keys = attention_heads(kv_heads * group, kv_heads, 64)
    axis = BorrowingHeads("query_heads", kv_heads * borrowing, lender)
    mine, held = (each.divide(shares, cut=32, expert_parallel=False) for each in (axis, keys))
    assert [head for query in mine for head in query] == list(range(axis.count))
    assert all({head // borrowing for head in query} <= set(kv) for query, kv in zip(mine, held, strict=True))


def test_query_heads_that_borrow_whole_kv_heads_are_divided_as_without_a_lender() -> None:
    lender, _ = attention_heads(64, 8, 128)
    for shares in ([1] * 4, [1] * 8, [1] * 16):
        found = BorrowingHeads("query_heads", 16, lender).divide(shares, cut=32, expert_parallel=False)
        assert found == [query for query, _ in split_heads(16, 8, shares)]


def test_query_heads_that_borrow_cut_groups_are_cut_in_the_same_proportion() -> None:
    lender, _ = attention_heads(64, 8, 128)
    found = BorrowingHeads("query_heads", 16, lender).divide(SIX_NODES, cut=32, expert_parallel=False)
    assert [query.stop for query in found] == [3, 6, 8, 11, 14, 16]  # of 2.75, 5.5, 8, 10.75, 13.5, 16


@pytest.mark.parametrize(("value_dim", "cuts"), [(64, True), (96, True), (80, False), (24, False)])
def test_groups_are_cut_where_the_output_projections_groups_of_columns_allow_it(value_dim: int, cuts: bool) -> None:
    assert attention_heads(64, 8, value_dim) == (
        QueryHeads("query_heads", 64, 8, cuts),
        KvHeads("kv_heads", 8, 64, cuts),
    )


@pytest.mark.parametrize("case", ["gpt_oss", "mimo_v2_flash", "olmo2", "minimax_m2"])
def test_sinks_and_norms_over_all_heads_are_divided_as_the_heads(case: str, tmp_path: Path) -> None:
    config = load_model_config(checkpoints.save(checkpoints.random_model(case), tmp_path))
    found = 0
    for attention in (block.attention for block in config.decoder.blocks):
        assert isinstance(attention, Attention)
        if attention.mask.sinks is not None:
            assert attention.mask.sinks.heads == attention.queries
            found += 1
        if isinstance(attention.norms, AllHeadsNorms):
            assert (attention.norms.q.axis, attention.norms.k.axis) == (attention.queries, attention.keys)
            found += 1
    assert found > 0


MODELS = {
    "llama": lambda: hf.LlamaConfig(**checkpoints.sizes(96, 24, 8, 160, head_dim=32, attention_bias=True)),
    "olmo2": lambda: hf.Olmo2Config(**checkpoints.sizes(512, 16, 4, 160)),  # norms over all heads
    "qwen3": lambda: hf.Qwen3Config(**checkpoints.sizes(96, 20, 4, 160, head_dim=32)),
}
TOKENS = np.random.default_rng(0).integers(3, checkpoints.VOCAB, 90)


@pytest.mark.parametrize(("name", "tp"), [("llama", 6), ("olmo2", 3), ("qwen3", 3)])
def test_ranks_with_parts_of_groups_compute_what_transformers_does(
    name: str, tp: int, tmp_path: Path, team: Team
) -> None:
    model = checkpoints.build(MODELS[name]())
    path = checkpoints.save(model, tmp_path)
    group = [load_part(path, team, [1] * tp, rank, positions=128) for rank in range(tp)]
    heads = [loaded.config.decoder.shape(loaded.part).caches[0].heads for loaded in group]
    assert sum(each.kv for each in heads) > model.config.num_key_value_heads
    with torch.no_grad():
        expected = model(torch.from_numpy(TOKENS)[None]).logits[0].numpy()
    for logits in run_group(group, TOKENS):
        np.testing.assert_allclose(logits, expected, atol=2e-4)
