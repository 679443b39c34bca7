"""Poisson arrivals, and sending requests when they are due."""

import asyncio
import math

import numpy as np
import pytest
from numaserve.server.loadtest.workload.load import poisson_arrivals, run_load
from numaserve.server.loadtest.workload.requests import BenchRequest, Outcome

REQUESTS = [BenchRequest("x", index, 1) for index in range(12)]


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert poisson_arrivals(5, math.inf, np.random.default_rng(0)) == [0.0] * 5


def test_the_first_request_comes_at_once_and_none_before_another() -> None:
    arrivals = poisson_arrivals(500, 20.0, np.random.default_rng(0))
    assert arrivals[0] == 0.0
    assert arrivals == sorted(arrivals)


@pytest.mark.parametrize("rate", [0.5, 4.0, 250.0])
def test_gaps_are_exponential(rate: float) -> None:
    gaps = np.diff(poisson_arrivals(20_001, rate, np.random.default_rng(3))) * rate
    # Mean and deviation of the exponential distribution are 1; the bounds are six standard errors of 20000 samples.
    assert abs(gaps.mean() - 1) < 6 / math.sqrt(20_000)
    assert abs(gaps.std() - 1) < 6 * math.sqrt(2 / 20_000)
    for quantile in (0.1, 0.5, 0.9):
        error = math.sqrt(quantile / (1 - quantile) / 20_000)
        assert abs(np.quantile(gaps, quantile) + math.log(1 - quantile)) < 6 * error


def test_arrivals_depend_on_the_seed_only() -> None:
    first, again, other = (poisson_arrivals(50, 3.0, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_no_more_than_max_concurrency_run_at_a_time() -> None:
    running, most = 0, 0

    async def complete(request: BenchRequest) -> Outcome:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return Outcome(request.input_tokens)

    asyncio.run(run_load(complete, REQUESTS, [0.0] * 12, max_concurrency=3))
    assert most == 3


def test_outcomes_are_in_the_order_of_the_requests_whenever_they_came() -> None:
    sent: list[int] = []

    async def complete(request: BenchRequest) -> Outcome:
        sent.append(request.input_tokens)
        return Outcome(request.input_tokens)

    seen: list[Outcome] = []
    backwards = [0.03 * (12 - index) for index in range(12)]
    outcomes, seconds = asyncio.run(run_load(complete, REQUESTS, backwards, done=seen.append))
    assert sent == list(range(11, -1, -1))
    assert [outcome.input_tokens for outcome in outcomes] == list(range(12))
    assert len(seen) == 12
    assert seconds >= backwards[0]  # a request never leaves before it is due
