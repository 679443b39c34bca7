"""The estimate of the highest rate within latency limits."""

import pytest
from numaserve.workers.planning.rate import rate_within

STEPS = {1: 0.05, 2: 0.06, 4: 0.08}


def test_without_tight_limits_the_largest_batch_is_saturated() -> None:
    found = rate_within(0.5, STEPS, 100, ttft_s=10.0, tpot_s=10.0)
    assert found == pytest.approx(1 / (0.5 + 100 * 0.08 / 4))


def test_prompts_leave_each_token_the_time_of_its_step() -> None:
    found = rate_within(0.5, {1: 0.05}, 10, ttft_s=10.0, tpot_s=0.06)
    assert found == pytest.approx((1 - 0.05 / 0.06) / 0.5)
    assert found < rate_within(0.5, {1: 0.05}, 10, ttft_s=10.0, tpot_s=10.0) == 1.0
    # A step takes the limit when prompts have their part of the time.
    assert 0.05 / (1 - found * 0.5) == pytest.approx(0.06)


def test_the_number_of_sequences_is_the_best_one_of_all() -> None:
    found = rate_within(0.5, STEPS, 100, ttft_s=10.0, tpot_s=0.085)
    # Three sequences: four would leave too little time for prompts.
    assert found == pytest.approx((1 - 0.07 / 0.085) / 0.5)
    assert found > max((1 - 0.08 / 0.085) / 0.5, 1 / (0.5 + 100 * 0.06 / 2))


def test_batches_whose_steps_are_too_slow_do_not_count() -> None:
    assert rate_within(0.5, STEPS, 100, ttft_s=10.0, tpot_s=0.055) == pytest.approx(1 / (0.5 + 100 * 0.05))


def test_a_request_that_alone_exceeds_a_limit_has_no_rate() -> None:
    assert rate_within(0.5, STEPS, 100, ttft_s=0.4, tpot_s=10.0) == 0
    assert rate_within(0.5, STEPS, 100, ttft_s=10.0, tpot_s=0.04) == 0
