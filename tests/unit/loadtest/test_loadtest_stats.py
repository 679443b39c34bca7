"""Figures are those of numpy over the samples that the definitions name."""

import numpy as np
import pytest
from numaserve.server.loadtest.report.compare import ratios
from numaserve.server.loadtest.report.goodput import is_good, parse_goodput
from numaserve.server.loadtest.report.stats import Latency, Summary, latency_of, summarize
from numaserve.server.loadtest.workload.requests import Outcome
from numaserve.workers.interface.errors import OperatorError


def outcome(ttft: float, gaps: list[float], tokens: int | None = None) -> Outcome:
    count = len(gaps) + 1 if tokens is None else tokens
    return Outcome(10, count, 30, 4, ttft_s=ttft, e2e_s=ttft + sum(gaps), itls_s=gaps, with_usage=True)


def failed() -> Outcome:
    return Outcome(10, 3, ttft_s=99.0, e2e_s=99.0, error="HTTP 500: no")


def outcomes_of(seed: int, count: int = 40) -> list[Outcome]:
    rng = np.random.default_rng(seed)
    return [outcome(rng.exponential(), rng.exponential(0.05, size=rng.integers(0, 33)).tolist()) for _ in range(count)]


def test_time_per_output_token_leaves_out_the_first() -> None:
    assert outcome(2.0, [0.1, 0.3]).tpot_s == pytest.approx(0.2)
    assert outcome(2.0, [0.6], tokens=4).tpot_s == pytest.approx(0.2)  # chunks of several tokens
    assert outcome(2.0, []).tpot_s is None


def test_percentiles_are_numpys() -> None:
    sample = np.random.default_rng(5).exponential(size=173)
    latency = latency_of(sample.tolist())
    assert latency is not None
    assert latency.mean == pytest.approx(1e3 * np.mean(sample))
    assert latency.median == pytest.approx(1e3 * np.median(sample))
    assert latency.p95 == pytest.approx(1e3 * np.percentile(sample, 95))
    assert latency.p99 == pytest.approx(1e3 * np.percentile(sample, 99))


def test_a_summary_counts_every_completed_request_and_every_gap() -> None:
    outcomes = outcomes_of(1)
    summary = summarize(outcomes, 8.0, {})
    tokens = sum(each.output_tokens for each in outcomes)
    gaps = [gap for each in outcomes for gap in each.itls_s]
    assert (summary.completed, summary.failed, summary.first_error, summary.goodput) == (40, 0, None, None)
    assert (summary.input_tokens, summary.output_tokens, summary.cached_tokens) == (400, tokens, 160)
    assert summary.shorter == sum(each.output_tokens < 30 for each in outcomes)
    assert summary.request_throughput == 5.0
    assert summary.input_throughput == 50.0
    assert summary.output_throughput == pytest.approx(tokens / 8)
    assert summary.concurrency == pytest.approx(sum(each.e2e_s for each in outcomes) / 8)
    assert summary.latencies["itl"] == latency_of(gaps)
    assert summary.latencies["ttft"] == latency_of([each.ttft_s for each in outcomes])
    assert summary.latencies["e2el"] == latency_of([each.e2e_s for each in outcomes])


def test_failed_requests_change_no_figure_but_their_count() -> None:
    outcomes = outcomes_of(2)
    clean, spoilt = (summarize(each, 8.0, {"ttft": 500.0}) for each in (outcomes, [failed(), *outcomes, failed()]))
    assert (spoilt.failed, spoilt.first_error) == (2, "HTTP 500: no")
    assert spoilt.latencies == clean.latencies
    assert (spoilt.completed, spoilt.output_tokens, spoilt.goodput) == (40, clean.output_tokens, clean.goodput)


def test_nothing_completed_gives_no_latency() -> None:
    summary = summarize([failed()], 1.0, {})
    assert set(summary.latencies.values()) == {None}
    assert summary.request_throughput == 0.0


def test_goodput_counts_requests_within_every_limit() -> None:
    outcomes = [outcome(0.4, [0.04]), outcome(0.6, [0.04]), outcome(0.4, [0.06]), outcome(0.4, []), failed()]
    assert [is_good(each, {"ttft": 500.0, "tpot": 50.0}) for each in outcomes] == [True, False, False, True, False]
    assert summarize(outcomes, 4.0, {"ttft": 500.0, "tpot": 50.0}).goodput == 0.5
    assert summarize(outcomes, 4.0, {"e2el": 450.0}).goodput == 0.5


@pytest.mark.parametrize(
    "words",
    [["ttft:500", "tpot:50.5", "e2e:9000"], ["ttft:500 tpot:50.5", "e2el:9e3"], ["ttft:500,tpot:50.5,e2e:9000"]],
)
def test_objectives_may_be_written_in_several_ways(words: list[str]) -> None:
    assert parse_goodput(words) == {"ttft": 500.0, "tpot": 50.5, "e2el": 9000.0}


@pytest.mark.parametrize("word", ["ttft", "ttft:", "ttft:x", "ttft:0", "ttft:-1", "ttft:nan", "itl:5", ":5"])
def test_a_wrong_objective_is_a_mistake(word: str) -> None:
    with pytest.raises(OperatorError, match="--goodput"):
        parse_goodput([word])


def test_an_objective_may_not_be_given_twice() -> None:
    with pytest.raises(OperatorError, match=r"--goodput sets .* twice"):
        parse_goodput(["e2e:5", "e2el:6"])


def summary_with(ttft: float | None, tokens: int) -> Summary:
    latency = None if ttft is None else Latency(ttft, ttft, ttft, ttft)
    latencies = dict.fromkeys(("ttft", "tpot", "itl", "e2el"), latency)
    return Summary(1, 0, None, 2.0, 20, tokens, 0, 0, 1.0, None, latencies)


def test_ratios_are_taken_within_a_round() -> None:
    # From round to round the machine becomes three times slower; each round says the same of both.
    first = [summary_with(10.0, 300), summary_with(20.0, 200), summary_with(30.0, 100)]
    other = [summary_with(15.0, 600), summary_with(30.0, 500), summary_with(60.0, 150)]
    found = {ratio.figure: ratio for ratio in ratios(first, other)}
    ttft, output = found["TTFT median (ms)"], found["output tokens/s"]
    assert (ttft.median, ttft.lowest, ttft.highest, ttft.medians) == (1.5, 1.5, 2.0, (20.0, 30.0))
    assert (output.median, output.lowest, output.highest, output.medians) == (2.0, 1.5, 2.5, (100.0, 250.0))


def test_a_figure_that_a_server_lacks_has_no_ratio() -> None:
    found = {ratio.figure for ratio in ratios([summary_with(1.0, 5)], [summary_with(None, 5)])}
    assert found == {"input tokens/s", "output tokens/s", "requests/s"}
