"""The times at which requests are sent."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numaserve.server.loadtest.requests import BenchRequest


def poisson_arrivals(count: int, rate: float, rng: np.random.Generator) -> list[float]:
    """Seconds after the start at which `count` requests arrive: gaps are exponential with a mean of 1 / `rate`.

    The first comes at once. An infinite rate sends all at once.
    """
    if math.isinf(rate):
        return [0.0] * count
    gaps = rng.exponential(1.0 / rate, size=count)
    gaps[:1] = 0.0
    return [float(at) for at in np.cumsum(gaps)]


def arrivals_of(requests: Sequence[BenchRequest], rate: float | None, rng: np.random.Generator) -> list[float]:
    """Poisson arrivals at `rate`; without a rate the times of the trace, or all at once where it has none."""
    own = [request.arrival_s for request in requests if request.arrival_s is not None]
    if rate is None and len(own) == len(requests):
        return own
    return poisson_arrivals(len(requests), math.inf if rate is None else rate, rng)
