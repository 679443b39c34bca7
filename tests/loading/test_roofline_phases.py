"""The steps of a load, and what they need at least."""

import pytest
from numaserve.workers.planning.roofline.phases import RankMachine, decode_step, least_of, prefill_steps
from numaserve.workers.program.cost import Amount, OperationCost, StepWork

from tests.support.round_host import ROUND

RANK = RankMachine(ROUND, 4, 10e9)
READING = OperationCost("linear", "gemm", lambda step: Amount(nbytes=1e9, flops=1e6 * step.tokens, rows=1))
COMPUTING = OperationCost("linear", "gemm", lambda step: Amount(nbytes=1e6, flops=1.6e9 * step.tokens, rows=1))


def test_an_operation_takes_at_least_the_longer_of_reading_and_computing() -> None:
    for cost, seconds in ((READING, 0.1), (COMPUTING, 0.4)):
        assert least_of(RANK, [cost], [decode_step(1, 7)])["linear", "bf16"].seconds == pytest.approx(seconds)


def test_operations_of_a_name_are_summed_over_steps() -> None:
    found = least_of(RANK, [READING, COMPUTING], [decode_step(1, 7), decode_step(3, 7)])["linear", "bf16"]
    assert (found.calls, found.nbytes) == (4, 2 * 1e9 + 2 * 1e6)
    assert found.flops == pytest.approx(4e6 + 4 * 1.6e9)
    assert found.seconds == pytest.approx(2 * 0.1 + 4 * 0.4)


def test_a_prompt_is_cut_into_chunks_and_its_last_one_samples() -> None:
    assert prefill_steps(1100, 512) == [
        StepWork([(0, 512)], 0),
        StepWork([(512, 512)], 0),
        StepWork([(1024, 76)], 1),
    ]
    assert prefill_steps(512, 512) == [StepWork([(0, 512)], 1)]
    assert decode_step(2, 7) == StepWork([(7, 1), (7, 1)], 2)
