"""Sends requests when they are due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from numaserve.server.loadtest.requests import BenchRequest, Outcome

Complete = Callable[[BenchRequest], Awaitable[Outcome]]
Done = Callable[[Outcome], None]


async def run_load(
    complete: Complete,
    requests: Sequence[BenchRequest],
    arrivals_s: Sequence[float],
    *,
    max_concurrency: int | None = None,
    done: Done = lambda _outcome: None,
) -> tuple[list[Outcome], float]:
    """Outcomes in the order of `requests`, and the seconds that all took together.

    A request that is due while `max_concurrency` others run is sent when one of them ends, in order of arrival; its
    latency counts from there, as in vLLM's and SGLang's clients.
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
