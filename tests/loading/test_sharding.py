from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from numaserve.kernels import Program, Team
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, KvCacheDtype, ModelSettings, WeightFormats
from numaserve.workers.layers.axes import Axis, apportion, split, split_heads
from numaserve.workers.layers.parameters import MatrixParameter
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.models.spec import ModelConfig

from tests.support.configured import configured, with_experts

PLAIN, MOE = configured(), with_experts()
RANKS = st.lists(st.integers(1, 128), min_size=1, max_size=9)


def part_of(model: ModelConfig, shares: list[int], rank: int, settings: ModelSettings = DEFAULT_SETTINGS) -> RankPart:
    return model.partition(shares, settings).ranks[rank]


def weight_bytes(model: ModelConfig, shares: list[int], rank: int, settings: ModelSettings = DEFAULT_SETTINGS) -> int:
    return part_of(model, shares, rank, settings).weight_bytes()


def bytes_of_ranks(model: ModelConfig, shares: list[int], settings: ModelSettings = DEFAULT_SETTINGS) -> int:
    return sum(part.weight_bytes() for part in model.partition(shares, settings).ranks)


def page_bytes(model: ModelConfig, shares: list[int], rank: int, dtype: KvCacheDtype = "bf16") -> int:
    return model.decoder.page_bytes(part_of(model, shares, rank), dtype)


def axes_of(model: ModelConfig) -> dict[str, Axis]:
    """All axes, by name."""
    found: list[Axis | None] = []
    for parameter in model.decoder.parameters():
        found += [part.axis for part in parameter.parts]
        found.append(parameter.columns.axis if isinstance(parameter, MatrixParameter) and parameter.columns else None)
    return {axis.name: axis for axis in found if axis is not None}


def copied_bytes(model: ModelConfig, weights: list[int]) -> int:
    """Bytes of the copies of projections of keys and values, with 64 rows for each head in 30 layers."""
    held = model.partition(weights).ranges(axes_of(model)["kv_heads"])
    return (sum(map(len, held)) - 3) * 30 * 2 * 64 * 576 * 2


def sizes(heads: list[tuple[range, range]]) -> list[tuple[int, int]]:
    return [(len(q), len(kv)) for q, kv in heads]


@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "weights", "expected"),
    [
        (9, 3, [1, 1], [(6, 2), (3, 1)]),
        (64, 8, [1, 1, 1], [(24, 3), (24, 3), (16, 2)]),
        (8, 1, [1, 1, 1, 1], [(2, 1)] * 4),
        (3, 1, [1, 1], [(2, 1), (1, 1)]),
        (12, 2, [1, 1, 1], [(3, 1), (3, 1), (6, 1)]),
        (2, 2, [1, 1, 1], [(1, 1), (0, 0), (1, 1)]),
        (32, 8, [43, 43, 42], [(12, 3), (12, 3), (8, 2)]),
        (8, 2, [30, 2], [(4, 1), (4, 1)]),
    ],
)
def test_heads_are_divided_by_kv_head_or_the_kv_head_is_replicated(
    q_heads: int, kv_heads: int, weights: list[int], expected: list[tuple[int, int]]
) -> None:
    assert sizes(split_heads(q_heads, kv_heads, weights)) == expected


@given(kv_heads=st.integers(1, 16), group=st.integers(1, 12), weights=RANKS)
def test_every_query_head_is_on_one_rank_together_with_its_kv_head(
    kv_heads: int, group: int, weights: list[int]
) -> None:
    heads = split_heads(kv_heads * group, kv_heads, weights)
    assert len(heads) == len(weights)
    assert [head for q, _ in heads for head in q] == list(range(kv_heads * group))
    for q, kv in heads:
        assert sorted({head // group for head in q}) == list(kv)
        # Recurrent layers have as many value heads for each key head.
        assert not kv or len(q) % len(kv) == 0
    if kv_heads * group >= len(weights) and kv_heads >= len(weights):
        assert all(q for q, _ in heads)


@given(total=st.integers(1, 5000), unit=st.sampled_from([1, 16, 32]), weights=RANKS)
def test_every_row_is_in_exactly_one_range_and_cuts_lie_on_tiles(total: int, unit: int, weights: list[int]) -> None:
    ranges = split(total, weights, unit)
    assert [row for part in ranges for row in part] == list(range(total))
    assert all(part.start % unit == 0 for part in ranges if part)
    for part, weight in zip(ranges, weights, strict=True):
        assert abs(len(part) - total * weight / sum(weights)) < 2 * unit


@given(count=st.integers(0, 300), weights=RANKS, minimum=st.integers(0, 2))
def test_apportioning_gives_everything_away_and_keeps_the_minimum(count: int, weights: list[int], minimum: int) -> None:
    parts = apportion(count, weights, minimum)
    assert sum(parts) == count
    assert min(parts) >= (minimum if count >= minimum * len(weights) else 0)


def test_weights_that_are_not_positive_are_refused() -> None:
    with pytest.raises(ValueError, match="each rank needs at least one core"):
        apportion(3, [1, 0])


def test_one_rank_holds_the_whole_model() -> None:
    part, axes = part_of(configured(), [8], 0), axes_of(configured())
    assert {name: part.along(axis) for name, axis in axes.items()} == {
        "query_heads": range(9),
        "kv_heads": range(3),
        "intermediate": range(1536),
        "vocabulary": range(49152),
    }


def test_weight_bytes_are_two_for_each_parameter_of_the_matrices() -> None:
    parameters = 30 * (576 * (9 + 2 * 3 + 9) * 64 + 3 * 576 * 1536) + 49152 * 576
    assert weight_bytes(configured(), [8], 0) == 2 * parameters
    assert weight_bytes(configured(tie_word_embeddings=False), [8], 0) == 2 * (parameters + 49152 * 576)


def test_int8_weights_are_one_byte_and_eight_more_for_each_output_feature() -> None:
    settings = ModelSettings(formats=WeightFormats(linear="int8"))
    parameters = 30 * (576 * (9 + 2 * 3 + 9) * 64 + 3 * 576 * 1536)
    features = 30 * ((9 + 2 * 3) * 64 + 576 + 2 * 1536 + 576)
    assert weight_bytes(configured(), [8], 0, settings) == parameters + 8 * features + 2 * 49152 * 576


def test_a_quantized_head_is_another_matrix_than_the_embedding() -> None:
    settings = ModelSettings(formats=WeightFormats(lm_head="int8"))
    assert weight_bytes(configured(), [8], 0, settings) - weight_bytes(configured(), [8], 0) == 49152 * (576 + 8)


@given(weights=st.lists(st.integers(1, 64), min_size=2, max_size=3))
def test_the_ranks_together_hold_the_model_once(weights: list[int]) -> None:
    once = weight_bytes(PLAIN, [1], 0) + copied_bytes(PLAIN, weights)
    # A part of the vocabulary may end in half a pair of panels.
    assert 0 <= bytes_of_ranks(PLAIN, weights) - once <= len(weights) * 16 * 576 * 2


def test_weight_bytes_count_every_expert_and_a_whole_router() -> None:
    attention, dense, vocabulary = 576 * (9 + 2 * 3 + 9) * 64, 3 * 576 * 1536, 49152 * 576
    # 12 rows and the gate's, padded to 32.
    experts = 3 * 576 * (12 * 768 + 1024) + 32 * 576
    assert weight_bytes(with_experts(), [8], 0) == 2 * (30 * attention + dense + 29 * experts + vocabulary)


@given(weights=st.lists(st.integers(1, 64), min_size=2, max_size=3))
def test_the_ranks_together_hold_every_expert_once(weights: list[int]) -> None:
    routers = 29 * 32 * 576 * 2
    whole = weight_bytes(MOE, [1], 0) - routers
    together = bytes_of_ranks(MOE, weights) - len(weights) * routers
    assert 0 <= together - whole - copied_bytes(MOE, weights) <= len(weights) * 16 * 576 * 2


@given(weights=RANKS)
def test_experts_are_cut_at_tiles_like_the_mlp(weights: list[int]) -> None:
    partition, axes = MOE.partition(weights), axes_of(MOE)
    for name, total in (("expert_intermediate", 768), ("shared_intermediate", 1024), ("intermediate", 1536)):
        assert partition.ranges(axes[name]) == split(total, weights, 32)


def test_a_page_counts_local_heads_padded_to_whole_tiles() -> None:
    assert page_bytes(configured(), [1, 1], 0) == 2 * 30 * 2 * PAGE_SIZE * 64 * 2
    assert page_bytes(configured(head_dim=48), [1, 1], 1) == 2 * 30 * 1 * PAGE_SIZE * 64 * 2


@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3"])
def test_a_quantized_page_is_a_byte_a_value_and_two_for_each_scale(dtype: KvCacheDtype) -> None:
    assert page_bytes(configured(), [1, 1], 0, dtype) == 2 * 30 * 2 * PAGE_SIZE * (64 + 2)
    assert page_bytes(configured(head_dim=48), [1, 1], 1, dtype) == 2 * 30 * 1 * PAGE_SIZE * (64 + 2)


@pytest.mark.parametrize("dtype", get_args(KvCacheDtype))
@pytest.mark.parametrize("head_dim", [48, 64])
def test_native_code_takes_the_memory_that_was_planned(dtype: KvCacheDtype, head_dim: int) -> None:
    settings = {
        **structs.asdict(Capacity.of_program(16, 16, 1, 4, 64)),
        "vocabulary": 32,
        "extra_tokens": 0,
        "context_parallel": None,
        "caches": [(9, 3, 0, 0, head_dim, head_dim, False, 0, False, False, False, 30, 0)],
        "states": [],
        "kv_dtype": dtype,
        "arena_bytes": 4096,
    }
    program = Program(Team([-1]), None, settings)
    planned = 64 * page_bytes(configured(head_dim=head_dim), [1], 0, dtype)
    assert sum(nbytes for _, nbytes in program.kv_memory) == planned
