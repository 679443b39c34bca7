"""The send times of requests, and the sending."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

import numpy as np
from numaserve.server.loadtest.workload.requests import BenchRequest, Outcome

Complete = Callable[[BenchRequest], Awaitable[Outcome]]
Done = Callable[[Outcome], None]


def poisson_arrivals(count: int, rate: float, rng: np.random.Generator) -> list[float]:
    """Return the arrival times of `count` requests, in seconds after the start.

    Gaps are exponential with a mean of 1 / `rate`. The first request arrives at once. An infinite rate sends all
    requests at once.
    """
    if math.isinf(rate):
        return [0.0] * count
    gaps = rng.exponential(1.0 / rate, size=count)
    gaps[:1] = 0.0
    return [float(at) for at in np.cumsum(gaps)]


def arrivals_of(requests: Sequence[BenchRequest], rate: float | None, rng: np.random.Generator) -> list[float]:
    """Return Poisson arrivals at `rate`; without a rate, the times of the trace, or all at once without times."""
    own = [request.arrival_s for request in requests if request.arrival_s is not None]
    if rate is None and len(own) == len(requests):
        return own
    return poisson_arrivals(len(requests), math.inf if rate is None else rate, rng)


async def run_load(
    complete: Complete,
    requests: Sequence[BenchRequest],
    arrivals_s: Sequence[float],
    *,
    max_concurrency: int | None = None,
    done: Done = lambda _outcome: None,
) -> tuple[list[Outcome], float]:
    """Send `requests`. Return their outcomes, in the same order, and the duration of the load in seconds.

    A request that is due while `max_concurrency` others run is sent when one of them ends, in order of arrival. Its
    latency counts from its sending, as in vLLM's and SGLang's clients.
    """
    gate: AbstractAsyncContextManager[object] = (
        nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    )
    begin = time.perf_counter()

    async def one(request: BenchRequest, at_s: float) -> Outcome:
        await asyncio.sleep(begin + at_s - time.perf_counter())
        async with gate:
            outcome = await complete(request)
        done(outcome)
        return outcome

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(*each)) for each in zip(requests, arrivals_s, strict=True)]
    return [task.result() for task in tasks], time.perf_counter() - begin
