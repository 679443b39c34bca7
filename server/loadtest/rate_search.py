"""The search for the highest rate of requests within latency limits, as in the server scenario of MLPerf Inference."""

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from numaserve.server.loadtest.report.stats import Summary
from numaserve.server.loadtest.server_load import ServerLoad

_WITHIN = 1.1  # ratio of the lowest rate that does not keep the limits to the highest one that does
_UP, _DOWN = 10, 5  # times that a rate is doubled or halved


@dataclass(frozen=True)
class RateRun:
    """A run at a rate, in requests per second."""

    rate: float
    summary: Summary
    kept: bool  # whether all requests were answered and the 99th percentiles are within the limits


async def run_rates(
    load: ServerLoad, limits: Mapping[str, float], first_rate: float, duration_s: float
) -> tuple[list[RateRun], RateRun | None]:
    """Return the runs of the search in their order, and the run at the highest rate that kept the limits.

    `limits` are in milliseconds, by the names of `goodput`.
    """
    runs: dict[float, RateRun] = {}

    async def keeps(rate: float) -> bool:
        summary = await load.at_rate(rate, duration_s)
        runs[rate] = RateRun(rate, summary, summary.failed == 0 and is_within(summary, limits, "p99"))
        return runs[rate].kept

    best = await highest_rate(keeps, first_rate)
    return list(runs.values()), None if best is None else runs[best]


def is_within(summary: Summary, limits: Mapping[str, float], figure: Literal["median", "p99"]) -> bool:
    """Return whether that figure of each latency is within its limit."""
    latencies = {name: summary.latencies[name] for name in limits}
    return all(each is not None and getattr(each, figure) <= limits[name] for name, each in latencies.items())


async def highest_rate(keeps: Callable[[float], Awaitable[bool]], first: float) -> float | None:
    """Return the highest rate for which `keeps` was true, within 10 %. Return None if a 32nd of `first` is too high.

    The rate is doubled or halved until one rate keeps the limits and another does not. Then the range is divided.
    """
    low, high = (first, math.inf) if await keeps(first) else (0.0, first)
    for _ in range(_UP if low else _DOWN):
        rate = low * 2 if low else high / 2
        if await keeps(rate):
            low = rate
        else:
            high = rate
        if low and math.isfinite(high):
            break
    while low and math.isfinite(high) and high / low > _WITHIN:
        rate = math.sqrt(low * high)
        if await keeps(rate):
            low = rate
        else:
            high = rate
    return low or None
