"""The scheduler's terms of a step are those of the operations themselves."""

from dataclasses import dataclass

import pytest
from numaserve.server.costs.cost_table import CostTable
from numaserve.workers.interface.protocol import OperationTerms, Ready, decode_from_worker, encode
from numaserve.workers.program.cost import StepWork, merged_terms, of_logit_rows
from numaserve.workers.program.handles import Adapters
from numaserve.workers.program.ops.products import weight_cost
from numaserve.workers.program.recording.builder import ProgramBuilder

from tests.support.recorded_programs import MatrixShape, all_programs, dense

STEPS = [
    StepWork([(0, 1)], 0),
    StepWork([(0, 40)], 1),
    StepWork([(7, 1), (30, 1), (100, 12)], 2),
    StepWork([(500, 17)], 17),
    StepWork([(0, 100), (0, 3), (0, 41)], 0),
]
PROGRAMS = all_programs()
# Bidirectional attention is of whole sequences.
CASES = [
    (name, step)
    for name in PROGRAMS
    for step in STEPS
    if "encoder" not in name or not any(start for start, _ in step.sequences)
]


def terms_of(operations: list[OperationTerms], step: StepWork) -> tuple[float, ...]:
    work = CostTable.of(operations).begin()
    for (start, count), rows in zip(step.sequences, step.sequence_rows(), strict=True):
        work.add(start, count, rows)
    return work.terms()


@pytest.mark.parametrize(("name", "step"), CASES, ids=str)
def test_terms_add_up_to_what_the_operations_cost(name: str, step: StepWork) -> None:
    builder: ProgramBuilder = PROGRAMS[name]
    costs = builder.costs()
    amounts = [cost.amount(step) for cost in costs]
    _, weights, products, read, pairs = terms_of(merged_terms(costs), step)
    assert weights + read == pytest.approx(sum(each.nbytes for each in amounts))
    assert products + pairs == pytest.approx(sum(each.flops for each in amounts))


def test_what_a_rank_tells_comes_through_a_message() -> None:
    terms = merged_terms(dense().costs())
    ready = Ready(0, "avx512", 1, 2, 3, 0, terms=terms)
    assert decode_from_worker(encode(ready)) == ready
    assert {each.name for each in terms} >= {"gate_up", "attention", "lm_head"}


def test_operations_of_one_name_are_told_together_unless_their_windows_differ() -> None:
    one, other = (OperationTerms("attention", position_bytes=4, pair_flops=8, window=window) for window in (0, 32))
    table = CostTable.of([one, one, other])
    assert table.attention == ((0, 8, 16), (32, 4, 8))


def test_a_chunk_is_priced_before_it_is_added() -> None:
    work = CostTable.of(merged_terms(dense().costs())).begin()
    work.add(3, 1, 1)
    ahead = work.terms(10, 20)
    work.add(10, 20)
    assert ahead == work.terms()


def test_the_rank_that_has_most_to_do_is_the_one_that_counts() -> None:
    light, heavy = (OperationTerms("linear", weight_bytes=size, row_flops=size) for size in (10, 30))
    assert CostTable.of_slowest([[light], [heavy]]).weight_bytes == 30
    assert CostTable.of_slowest([]).is_empty


@pytest.mark.parametrize("window", [0, 32])
@pytest.mark.parametrize(("start", "count"), [(0, 1), (5, 1), (5, 3), (28, 5), (200, 7)])
def test_a_token_behind_others_costs_what_a_longer_chunk_would(start: int, count: int, window: int) -> None:
    table = CostTable.of([OperationTerms("attention", position_bytes=4, pair_flops=8, window=window)])
    step, longer = table.begin(), table.begin()
    step.add(start, count, count)
    longer.add(start, count + 1, count + 1)
    before = step.terms()
    step.lengthen(start, count)
    assert step.terms() == longer.terms()
    step.lengthen(start, count, times=-1)
    assert step.terms() == before


@dataclass(frozen=True, eq=False)
class Adapter:
    mean_rank: float


def adapted(parts: int, adapters: int = 8) -> CostTable:
    """Return the table of a product that adapters update, and of the same product for rows of logits."""
    n, k = 48, 64
    memory = Adapters(adapters, 16, parts, k, ((0,),) * 3) if adapters else None
    product = weight_cost("down", "gemm", MatrixShape(n, k, adapters=memory), widened=False)
    return CostTable.of(merged_terms([product, of_logit_rows(product)]))


@pytest.mark.parametrize("parts", [1, 3])
def test_a_step_reads_each_adapter_once_and_multiplies_its_rows(parts: int) -> None:
    table, wide, low = adapted(parts), Adapter(16.0), Adapter(2.5)
    values = parts * 64 + 48  # of an adapter of rank 1
    step, plain = table.begin(), table.begin()
    for start, count, rows, adapter in [(0, 5, 1, wide), (9, 1, 1, None), (30, 1, 1, wide), (4, 7, 0, low)]:
        ahead = step.terms(start, count, rows, adapter=adapter)
        step.add(start, count, rows, adapter=adapter)
        assert step.terms() == ahead
        plain.add(start, count, rows)
    more = [one - other for one, other in zip(step.terms(), plain.terms(), strict=True)]
    read = (16 + 2.5) + 16  # of tokens, and of rows of logits
    multiplied = (6 * 16 + 7 * 2.5) + 2 * 16
    assert more == [0, 2 * values * read, 2 * values * multiplied, 0, 0]
    before = step.terms()
    step.lengthen(30, 1, adapter=wide)
    plain.lengthen(30, 1)
    assert step.terms()[2] - plain.terms()[2] == 2 * values * (multiplied + 2 * 16)
    step.lengthen(30, 1, -1, adapter=wide)
    assert step.terms() == before


def test_memory_for_adapters_costs_nothing_in_steps_without_them() -> None:
    steps = [adapted(1, adapters).begin() for adapters in (8, 0)]
    for step in steps:
        step.add(3, 4, 1)
    assert steps[0].terms() == steps[1].terms()
