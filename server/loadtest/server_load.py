"""The loads of ``numaserve bench host`` on the server that the command has started."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from numaserve.server.client.remote import RemoteServer
from numaserve.server.loadtest.options import Traffic, Workload
from numaserve.server.loadtest.report.stats import Summary, summarize
from numaserve.server.loadtest.runner import Bench
from numaserve.server.loadtest.target import open_target
from numaserve.server.loadtest.workload.requests import Outcome

Say = Callable[[str], None]


@dataclass
class ServerLoad:
    """The loads on a server that is warm. Each load has its own prompts, so that none hits the cache.

    `seed` is that of the next load; `say` gets the progress.
    """

    bench: Bench
    seed: int
    say: Say

    async def one_at_a_time(self, count: int) -> Summary:
        """Send `count` requests, each after the answer to the previous one."""
        traffic = replace(self.bench.client.traffic, max_concurrency=1)
        bench = replace(self.bench, client=replace(self.bench.client, traffic=traffic))
        return await self._run(bench, count, math.inf, "one request at a time")

    async def at_rate(self, rate: float, duration_s: float) -> Summary:
        """Send requests at random times (Poisson), `rate` per second, for about `duration_s` seconds."""
        return await self._run(self.bench, max(1, round(rate * duration_s)), rate, f"{rate:.3g} requests per second")

    async def _run(self, bench: Bench, count: int, rate: float, label: str) -> Summary:
        requests = await replace(bench, workload=replace(bench.workload, num_prompts=count)).requests(self.seed)
        done = 0

        def count_done(_: Outcome) -> None:
            nonlocal done
            done += 1
            self.say(f"{label}: {done} of {count}")

        self.say(f"{label}: 0 of {count}")
        run = await bench.run(requests, rate, self.seed, count_done)
        self.seed += 1
        return summarize(run.outcomes, run.duration_s, {})


@asynccontextmanager
async def server_load(
    remote: RemoteServer, workload: Workload, traffic: Traffic, say: Say
) -> AsyncIterator[ServerLoad]:
    """Yield the loads on the server `remote`, which has answered a warm-up request. Raises `OperatorError` if it does
    not answer one."""
    async with open_target(remote.url, traffic, remote.uds) as target:
        bench = await Bench.connect(target, workload, traffic)
        await bench.warm_up(await replace(bench, workload=replace(workload, num_prompts=1)).requests(0), traffic.seed)
        yield ServerLoad(bench, traffic.seed, say)
