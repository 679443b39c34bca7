"""The search for the highest rate of requests within latency limits."""

import asyncio

import pytest
from numaserve.server.loadtest import rate_search
from numaserve.server.loadtest.rate_search import highest_rate, is_within, run_rates
from numaserve.server.loadtest.report.stats import Summary, summarize
from numaserve.server.loadtest.workload.requests import Outcome


def search(capacity: float, first: float) -> tuple[float | None, list[float]]:
    """The result, and the rates that were tried, of a server that keeps the limits up to `capacity`."""
    tried: list[float] = []

    async def keeps(rate: float) -> bool:
        tried.append(rate)
        return rate <= capacity

    return asyncio.run(highest_rate(keeps, first)), tried


@pytest.mark.parametrize("first", [0.2, 1.0, 2.9, 3.0, 3.1, 40.0])
def test_the_rate_is_found_within_ten_percent(first: float) -> None:
    found, tried = search(3.0, first)
    assert found is not None
    assert found in tried
    assert 3.0 / 1.1 <= found <= 3.0
    assert len(tried) == len(set(tried)) <= 9


def test_the_range_is_left_with_two_rates_on_each_side_at_most() -> None:
    assert search(3.0, 2.0)[1][:2] == [2.0, 4.0]
    assert search(3.0, 8.0)[1][:3] == [8.0, 4.0, 2.0]


def test_a_server_that_keeps_no_rate_has_none() -> None:
    assert search(0.9, 32.0) == (None, [32.0, 16.0, 8.0, 4.0, 2.0, 1.0])
    assert search(1.0, 32.0)[0] == 1.0


def test_a_server_without_a_limit_ends_the_search() -> None:
    found, tried = search(float("inf"), 1.0)
    assert found == max(tried) == 1024.0


def outcome(ttft_s: float, tpot_s: float, error: str | None = None) -> Outcome:
    return Outcome(8, output_tokens=11, asked_tokens=11, ttft_s=ttft_s, e2e_s=ttft_s + 10 * tpot_s, error=error)


def summary_of(*outcomes: Outcome) -> Summary:
    return summarize(outcomes, 1.0, {})


def test_every_latency_counts() -> None:
    quick, late = summary_of(*[outcome(0.1, 0.01)] * 3), summary_of(*[outcome(0.1, 0.01)] * 2, outcome(9.0, 0.01))
    assert is_within(quick, {"ttft": 101.0, "tpot": 10.5}, "p99")
    assert not is_within(quick, {"ttft": 99.0, "tpot": 10.5}, "p99")
    assert not is_within(quick, {"ttft": 101.0, "tpot": 9.5}, "p99")
    assert is_within(late, {"ttft": 101.0}, "median")
    assert not is_within(late, {"ttft": 101.0}, "p99")
    assert not is_within(summary_of(outcome(0.1, 0.01, "refused")), {"ttft": 101.0}, "p99"), "nothing was measured"


class Load:
    """A server whose requests take a second longer, or fail, above a rate."""

    def __init__(self, error: str | None) -> None:
        self.asked: list[tuple[float, float]] = []
        self._error = error

    async def at_rate(self, rate: float, duration_s: float) -> Summary:
        self.asked.append((rate, duration_s))
        above = outcome(1.1 if self._error is None else 0.1, 0.01, self._error)
        return summary_of(outcome(0.1, 0.01), above if rate > 3.0 else outcome(0.1, 0.01))


@pytest.mark.parametrize("error", [None, "HTTP 429"])
def test_a_late_or_refused_request_breaks_the_limits(error: str | None) -> None:
    load = Load(error)
    runs, best = asyncio.run(run_rates(load, {"ttft": 500.0, "tpot": 50.0}, 2.0, 7.0))  # type: ignore[arg-type]
    assert load.asked == [(run.rate, 7.0) for run in runs]
    assert [run.kept for run in runs] == [run.rate <= 3.0 for run in runs]
    assert best is not None and best.rate == max(run.rate for run in runs if run.kept)
    assert best.rate >= 3.0 / rate_search._WITHIN
