"""The figures of a run, computed from the outcomes of its requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numaserve.server.loadtest.report.goodput import is_good
from numaserve.server.loadtest.report.speculation import Speculation
from numaserve.server.loadtest.workload.requests import Outcome

LATENCIES = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True)
class Latency:
    """A latency distribution in milliseconds. Percentiles are interpolated as by numpy's default."""

    mean: float
    median: float
    p95: float
    p99: float


@dataclass(frozen=True)
class Summary:
    """The figures of one run. Throughputs cover the time from the first request to the end of the last answer."""

    completed: int
    failed: int
    first_error: str | None
    duration_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    shorter: int  # completed requests that got fewer tokens than they asked for
    concurrency: float  # requests in flight, on average
    goodput: float | None  # requests per second within the objectives; None without objectives
    latencies: Mapping[str, Latency | None]  # by the names in LATENCIES; None without a sample
    speculation: Speculation | None = None  # None if the server does not report it

    @property
    def request_throughput(self) -> float:
        """Completed requests per second."""
        return self.completed / self.duration_s

    @property
    def input_throughput(self) -> float:
        """Prompt tokens per second, cached tokens included."""
        return self.input_tokens / self.duration_s

    @property
    def output_throughput(self) -> float:
        """Generated tokens per second."""
        return self.output_tokens / self.duration_s


def summarize(
    outcomes: Sequence[Outcome],
    duration_s: float,
    limits: Mapping[str, float],
    speculation: Speculation | None = None,
) -> Summary:
    """Return the figures of `outcomes`. `limits` are the objectives of goodput, in milliseconds.

    Failed requests count only in the number of failed requests.
    """
    done = [outcome for outcome in outcomes if outcome.error is None]
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    samples = {
        "ttft": [outcome.ttft_s for outcome in done],
        "tpot": [outcome.tpot_s for outcome in done if outcome.tpot_s is not None],
        "itl": [gap for outcome in done for gap in outcome.itls_s],
        "e2el": [outcome.e2e_s for outcome in done],
    }
    return Summary(
        completed=len(done),
        failed=len(errors),
        first_error=errors[0] if errors else None,
        duration_s=duration_s,
        input_tokens=sum(outcome.input_tokens for outcome in done),
        output_tokens=sum(outcome.output_tokens for outcome in done),
        cached_tokens=sum(outcome.cached_tokens for outcome in done),
        shorter=sum(outcome.output_tokens < outcome.asked_tokens for outcome in done),
        concurrency=sum(outcome.e2e_s for outcome in done) / duration_s,
        goodput=sum(is_good(outcome, limits) for outcome in done) / duration_s if limits else None,
        latencies={name: latency_of(samples[name]) for name in LATENCIES},
        speculation=speculation,
    )


def latency_of(seconds: Sequence[float]) -> Latency | None:
    """Return the distribution of a sample; None for an empty sample."""
    if not seconds:
        return None
    in_ms = np.asarray(seconds) * 1e3
    median, p95, p99 = np.percentile(in_ms, [50, 95, 99])
    return Latency(float(in_ms.mean()), float(median), float(p95), float(p99))
