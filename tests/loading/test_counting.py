"""The work that Programs count at the size of a host that is not here: none is lost, and threads have equal parts."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from numaserve.kernels import Team
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.settings import ModelSettings, WeightFormats
from numaserve.workers.models.load import load_model_config
from numaserve.workers.planning.simulation import counting
from numaserve.workers.planning.simulation.counting import CountedGroup, Phase
from numaserve.workers.program.cost import StepWork
from numaserve.workers.program.ops.attention import Attention
from numaserve.workers.program.ops.base import Operation
from numaserve.workers.program.ops.experts import MultiplyExperts
from numaserve.workers.program.ops.products import Linear

from tests.support.full_shapes import DEEPSEEK_R1, LLAMA_70B, QWEN3_235B

SIX = [43, 43, 42, 43, 43, 42]
PROMPT, TOKEN = StepWork([(0, 200)], 1), StepWork([(1000, 1)], 1)
LIMITS = Capacity.of_program(max_step_tokens=512, max_logit_rows=1, max_slots=1, pages_per_slot=32, num_pages=33)
SLOT_BYTES = 4 * 512 * 8192
INT8 = ModelSettings(formats=WeightFormats("int8"))

MakeGroup = Callable[..., CountedGroup]


@pytest.fixture
def make_group(tmp_path: Path) -> Iterator[MakeGroup]:
    """Makes the ranks of the first layers of a model."""
    groups = []

    def make(
        model: Mapping[str, Any],
        layers: int,
        settings: ModelSettings = INT8,
        *,
        shares: Sequence[int] = SIX,
        skew: float = 0.0,
    ) -> CountedGroup:
        cut = {"num_hidden_layers": layers, "num_nextn_predict_layers": 0}
        (tmp_path / "config.json").write_text(json.dumps(dict(model) | cut))
        config = load_model_config(tmp_path)
        groups.append(CountedGroup(config.decoder, config.partition(shares, settings), LIMITS, SLOT_BYTES, skew))
        return groups[-1]

    yield make
    for group in groups:
        group.__exit__(None, None, None)


def total(phases: list[Phase], kind: type[Operation], figure: str) -> int:
    """The sum of a figure over all threads in operations of one kind."""
    return sum(getattr(work, figure) for each in of_kind(phases, kind) for work in (*each.threads, *each.items))


def of_kind(phases: list[Phase], kind: type[Operation]) -> list[Phase]:
    return [each for each in phases if type(each.operation) is kind]


def matrix_bytes(phases: list[Phase]) -> int:
    products = {id(each.operation): each.operation for each in of_kind(phases, Linear)}
    return sum(operation.weight.nbytes for operation in products.values())


def test_threads_read_each_weight_once_for_a_token(make_group: MakeGroup) -> None:
    for phases in make_group(LLAMA_70B, 1, ModelSettings()).step(TOKEN):
        assert total(phases, Linear, "memory") == matrix_bytes(phases)


def test_threads_multiply_all_rows_of_a_prompt(make_group: MakeGroup) -> None:
    """In the last layer only the row of logits goes on after attention."""
    for phases in make_group(LLAMA_70B, 1, ModelSettings()).step(PROMPT):
        products = {id(each.operation): each.operation for each in of_kind(phases, Linear)}
        sizes = [each.weight.n * each.weight.k for each in products.values()]
        expected = 2 * (200 * sum(sizes[:2]) + sum(sizes[2:]))
        assert 1.0 <= total(phases, Linear, "flops") / expected < 1.01  # of whole panels


def test_each_head_reads_the_pages_of_a_sequence_once(make_group: MakeGroup) -> None:
    # Each of six ranks has two of the eight KV heads; 1001 tokens are in 32 pages of 32.
    heads, pages, token = 6 * 2, 32, 2 * 128 * 2
    ranks = make_group(LLAMA_70B, 1).step(TOKEN)
    assert sum(total(phases, Attention, "memory") for phases in ranks) == heads * pages * 32 * token


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_experts_multiply_the_rows_of_all_tokens(make_group: MakeGroup, skew: float) -> None:
    ranks = make_group(QWEN3_235B, 2, skew=skew).step(PROMPT)
    rows = (200 + 1) * 8  # in the last layer, those of the row of logits
    assert sum(total(phases, MultiplyExperts, "flops") for phases in ranks) == 2 * rows * 3 * 1536 * 4096


def test_skewed_routing_reads_fewer_experts(make_group: MakeGroup) -> None:
    even, skewed = (
        sum(total(phases, MultiplyExperts, "memory") for phases in make_group(QWEN3_235B, 2, skew=skew).step(PROMPT))
        for skew in (0.0, 3.0)
    )
    assert skewed < 0.7 * even


def test_a_step_is_counted_the_same_again(make_group: MakeGroup) -> None:
    group = make_group(DEEPSEEK_R1, 4)
    first = group.step(TOKEN)
    assert group.step(PROMPT) != first
    assert group.step(TOKEN) == first


def test_counting_touches_little_of_the_memory_of_a_host(make_group: MakeGroup) -> None:
    """In huge pages the bytes that 256 threads touch in their scratch would be over half a GiB."""
    group, process = make_group(DEEPSEEK_R1, 4), psutil.Process()
    before = process.memory_info().rss
    group.step(PROMPT)
    assert process.memory_info().rss - before < 100 << 20


def test_a_program_counts_only_threads_that_take_turns(make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = SimpleNamespace(in_turns=lambda count: Team([-1] * count))
    monkeypatch.setattr(counting, "Team", threads)
    with pytest.raises(ValueError, match=r"use Team\.in_turns"):
        make_group(LLAMA_70B, 1, shares=[2])


def test_the_threads_of_a_rank_have_equal_parts_of_its_products(make_group: MakeGroup) -> None:
    phases = make_group(LLAMA_70B, 1).step(TOKEN)[0]
    assert {len(each.threads) for each in phases} == {43}
    (most, every) = (sum(figures) for figures in zip(*map(busiest, of_kind(phases, Linear)), strict=True))
    assert every / (43 * most) > 0.9


def busiest(phase: Phase) -> tuple[int, int]:
    """The bytes of the busiest thread, and of all."""
    read = [work.memory for work in phase.threads]
    return max(read), sum(read)


def test_a_lane_without_a_piece_of_an_overlapped_sum_meets_no_rank(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product of 128 rows and 544 columns has 68 units of 32 rows and 32 columns, fewer than lanes."""
    monkeypatch.setattr(counting, "_PATIENCE_S", 60.0)
    sizes = {"hidden_size": 544, "head_dim": 64, "num_attention_heads": 6, "num_key_value_heads": 3}
    group = make_group(LLAMA_70B | sizes, 1, ModelSettings(), shares=[70] * 3)
    for phases in group.step(StepWork([(0, 128)], 1)):
        [product] = [each for each in phases if each.joins_next]
        assert sum(work.flops > 0 for work in product.threads) == 68
