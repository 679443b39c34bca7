"""``python -m tests.replicas.routers [NAME ...]``: routers before several servers, each in an environment of its own.

Prints a table: for each workload the part of the prompts that the servers found in their caches and how much faster it
was, where the router sees equal beginnings, than with requests at random; then what became of requests when a server is
killed, when one drains, when the last one is slow and when all are full. The exit status is 1 where a request failed
that another server could have answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx

from tests.clients.environments import python_with
from tests.clients.known_clients import CLIENTS
from tests.clients.scripts.processes import free_port, running
from tests.replicas.most_hits import most_hits
from tests.replicas.router_load import Tally, asker, conversations, shared_prefixes
from tests.support.real_server import RealServer

ENVIRONMENTS = Path(__file__).resolve().parents[2] / "build" / "clients"
COMMANDS = {
    # It sends a request that was answered 429 again, and takes each of these answers for a sign of illness. Without
    # breakers its health checks alone tell of a dead server, of which they take three minutes by default, and it sends
    # a request again to where its beginning was sent before: retries have to last longer than a check takes.
    "sglang-router": [
        *("python", "-m", "sglang_router.launch_router", "--disable-circuit-breaker"),
        *("--health-check-interval-secs", "1", "--health-failure-threshold", "1"),
        *("--retry-max-retries", "10", "--retry-max-backoff-ms", "500"),
    ],
    "vllm-router": ["vllm-router"],
    # Otherwise a server gets no requests that had no whole answer for three seconds, which a few long prompts take.
    "smg": ["smg", "launch", "--worker-wedge-secs", "600", "--worker-stall-secs", "60"],
}
WORKLOADS = {"shared prefixes": shared_prefixes, "conversations": conversations}
FEW = partial(shared_prefixes, questions=2)
SERVERS = 4
OPTIONS = ("--tp", "1", "--threads-per-worker", "1", "--context-length", "1024", "--kv-cache-gib", "0.052")
FULL = ("--max-running-requests", "1", "--max-queued-requests", "1")
PATIENCE_S = 120.0
SLOW, STANDSTILL_S = 20, 4  # longer than smg waits by default, and shorter than a server waits for a worker


def main() -> int:
    """Run the routers that are named, or all; whether something failed that should not."""
    names = [name for name in COMMANDS if name in (sys.argv[1:] or COMMANDS)]
    rows: dict[str, dict[str, str]] = {}
    failed = False
    for name in names:
        packages = next(client.packages for client in CLIENTS if client.name == name)
        folder = python_with(packages, ENVIRONMENTS / name).parent
        command = [str(folder / COMMANDS[name][0]), *COMMANDS[name][1:]]
        with ExitStack() as stack:
            servers = [stack.enter_context(_server(number)) for number in range(SERVERS)]
            rows[name] = asyncio.run(_compared(command, servers))
            said, lost = asyncio.run(_failover(command, servers))
            rows[name]["one is killed, one drains"] = said
            rows[name]["one is killed, the other is slow"], ill = asyncio.run(_slow(command, servers[2:]))
        with ExitStack() as stack:
            servers = [stack.enter_context(_server(number, *FULL)) for number in range(2)]
            rows[name]["all are full"], tripped = asyncio.run(_full(command, servers))
        failed |= lost or ill or tripped
        print(name, rows[name], file=sys.stderr, flush=True)
    for what in next(iter(rows.values()), {}):
        print(f"| {what} |", " | ".join(rows[name][what] for name in names), "|")
    return int(failed)


def _server(number: int, *options: str) -> RealServer:
    """A server on one core, by turns."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[number % len(cores)]})  # which it inherits
    try:
        return RealServer(*OPTIONS, *options)
    finally:
        os.sched_setaffinity(0, cores)


async def _compared(command: Sequence[str], servers: Sequence[RealServer]) -> dict[str, str]:
    found: dict[str, dict[str, tuple[float, float]]] = {}
    most: dict[str, float] = {}
    for policy in ("random", "cache_aware"):
        async with _routed(command, policy, servers) as client:
            for name, workload in WORKLOADS.items():
                for server in servers:
                    httpx.post(f"{server.url}/flush_cache").raise_for_status()
                before, begin, tally = _looked_up(servers), time.monotonic(), Tally()
                await workload(asker(client, servers[0].model, tally), seed=7)
                assert not tally.failed, tally
                hits, queries = (now - then for now, then in zip(_looked_up(servers), before, strict=True))
                found.setdefault(name, {})[policy] = hits / queries, time.monotonic() - begin
                most[name] = await asyncio.to_thread(most_hits, servers[0], tally.asked)
    return {
        name: f"hits {each['random'][0]:.0%} -> {each['cache_aware'][0]:.0%} of at most {most[name]:.0%}, "
        f"throughput {each['random'][1] / each['cache_aware'][1]:.2f} x"
        for name, each in found.items()
    }


async def _failover(command: Sequence[str], servers: Sequence[RealServer]) -> tuple[str, bool]:
    """Of three one is killed and one drains under load; what became of requests, and whether any failed afterwards."""
    async with _routed(command, "cache_aware", servers[:3]) as client:
        told = []
        for end in (servers[0].process.kill, servers[1].process.terminate):
            tally = Tally()
            load = asyncio.create_task(FEW(asker(client, servers[0].model, tally), seed=len(told)))
            while tally.answered < 10:  # no event tells of it
                await asyncio.sleep(0.05)
            end()
            await load
            told.append(f"{tally.failed} of {tally.answered + tally.failed} failed {dict(tally.statuses)}")
        after = Tally()
        await FEW(asker(client, servers[0].model, after), seed=9)
    return f"{', '.join(told)}, then {after.failed} {dict(after.statuses)}", bool(after.failed)


async def _slow(command: Sequence[str], servers: Sequence[RealServer]) -> tuple[str, bool]:
    """One of two is killed, and then the workers of the other stand still while it is asked; whether that failed."""
    async with _routed(command, "cache_aware", servers) as client:
        slow, ask = Tally(), asker(client, servers[0].model, Tally())
        await FEW(ask, seed=1)
        servers[0].process.kill()
        await FEW(ask, seed=2)
        workers = servers[1].worker_pids()
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        ask = asker(client, servers[0].model, slow)
        asked = []
        for number in range(SLOW):
            asked.append(asyncio.create_task(ask([{"role": "user", "content": f"Name the capital of land {number}."}])))
            await asyncio.sleep(STANDSTILL_S / SLOW)
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):  # its server may have replaced it
                os.kill(worker, signal.SIGCONT)
        await asyncio.gather(*asked)
    return f"{slow.failed} of {slow.answered + slow.failed} failed {dict(slow.statuses)}", bool(slow.failed)


async def _full(command: Sequence[str], servers: Sequence[RealServer]) -> tuple[str, bool]:
    """All servers answer 429 to many; whether the router asks them again as soon as they are not full."""
    async with _routed(command, "cache_aware", servers) as client:
        many, after = Tally(), Tally()
        ask = asker(client, servers[0].model, many)
        await asyncio.gather(*(FEW(ask, seed=seed) for seed in range(3)))
        ask = asker(client, servers[0].model, after)
        for _ in range(10):
            await ask([{"role": "user", "content": "Name the capital of France."}])
    return f"{dict(many.statuses)}, then {dict(after.statuses)}", after.failed > 0


@contextlib.asynccontextmanager
async def _routed(
    command: Sequence[str], policy: str, servers: Sequence[RealServer]
) -> AsyncIterator[httpx.AsyncClient]:
    port, metrics_port = free_port(), free_port()
    urls = [server.url for server in servers if server.process.poll() is None]
    options = ["--policy", policy, "--port", str(port), "--prometheus-port", str(metrics_port), "--worker-urls", *urls]
    with tempfile.TemporaryFile() as log, running([*command, *options], log) as process:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, limits=limits) as client:
            end = time.monotonic() + PATIENCE_S
            ask = asker(client, servers[0].model, Tally())
            while await ask([{"role": "user", "content": "Hello"}]) is None:
                assert time.monotonic() < end, "the router does not answer"
                assert process.poll() is None, "the router has ended"
                await asyncio.sleep(0.5)
            yield client


def _looked_up(servers: Sequence[RealServer]) -> tuple[float, float]:
    """Tokens of prompts that were found in caches, and that were looked for."""
    all_ = [server.metrics() for server in servers]
    return tuple(sum(each[f"prefix_cache_{what}_tokens_total"] for each in all_) for what in ("hits", "queries"))


if __name__ == "__main__":
    sys.exit(main())
