"""Streams while long prompts arrive: what these cost the gaps between the streams' tokens, and how long they take.

python tests/bench/bench_overload.py [--model demo] [--streams 8] [--prompt-tokens 7000] [-- OPTIONS OF SERVE]

Each round has the streams alone, and then the same streams with the prompts one after the other. A gap is one between
two texts: a stream whose tokens are parts of characters has gaps of several steps, which `tokens_without_text_pct`
tells. To compare with a server that cuts prompts by tokens alone: -- --target-itl-ms 3600000
"""

import argparse
import asyncio
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from bench_serving import serving
from numaserve.server.cli.bench_report import MachineReport
from numaserve.server.loadtest.client import Client
from numaserve.server.loadtest.options import Traffic, Workload
from numaserve.server.loadtest.report.stats import latency_of
from numaserve.server.loadtest.runner import Bench
from numaserve.server.loadtest.target import open_target
from numaserve.server.loadtest.workload.requests import BenchRequest, Outcome
from numaserve.workers.bench.rows import Row, Rows

STREAM_PROMPT, LONG_OUTPUT = 32, 2
VOCABULARY = 30_000


def prompt(rng: random.Random, tokens: int) -> list[int]:
    return [rng.randrange(100, VOCABULARY) for _ in range(tokens)]


async def stream(client: Client, rng: random.Random, tokens: int) -> Outcome:
    return await client.complete(BenchRequest(prompt(rng, STREAM_PROMPT), STREAM_PROMPT, tokens))


async def long_prompts(client: Client, rng: random.Random, count: int, tokens: int) -> list[Outcome]:
    """Prompts that each arrive when the one before has been answered."""
    return [await client.complete(BenchRequest(prompt(rng, tokens), tokens, LONG_OUTPUT)) for _ in range(count)]


async def streams(
    client: Client, rng: random.Random, options: argparse.Namespace, prompts: int
) -> tuple[list[Outcome], list[Outcome]]:
    """What `options.streams` streams see, for as long as the prompts take if there are any, and what these do."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stream(client, rng, options.stream_tokens)) for _ in range(options.streams)]
        await asyncio.sleep(1.0)
        found = await long_prompts(client, rng, prompts, options.prompt_tokens)
    return [task.result() for task in tasks], found


async def measure(url: str, options: argparse.Namespace) -> Rows:
    rng, rows = random.Random(options.seed), []
    traffic = Traffic(warmup_requests=0)
    async with open_target(url, traffic) as target:
        client = (await Bench.connect(target, Workload(), traffic)).client
        await streams(client, rng, options, 1)  # the server learns what steps take
        for index in range(options.rounds):
            alone, _ = await streams(client, rng, options, 0)
            beside, found = await streams(client, rng, options, options.prompts)
            rows.append(row(index, options, alone, beside, found))
    return rows


def row(
    index: int,
    options: argparse.Namespace,
    alone: Sequence[Outcome],
    beside: Sequence[Outcome],
    found: Sequence[Outcome],
) -> Row:
    gaps_alone = latency_of([gap for each in alone for gap in each.itls_s])
    gaps = latency_of([gap for each in beside for gap in each.itls_s])
    ttft = latency_of([each.ttft_s for each in found])
    failed = sum(each.error is not None for each in (*alone, *beside, *found))
    tokens = sum(each.output_tokens for each in beside)
    texts = sum(len(each.itls_s) + 1 for each in beside)
    return Row(
        "overload",
        {"model": options.model, "streams": options.streams, "prompt_tokens": options.prompt_tokens, "round": index},
        {
            "itl_alone_p50_ms": gaps_alone.median,
            "itl_alone_p99_ms": gaps_alone.p99,
            "itl_p50_ms": gaps.median,
            "itl_p95_ms": gaps.p95,
            "itl_p99_ms": gaps.p99,
            "itl_max_ms": max(gap for each in beside for gap in each.itls_s) * 1e3,
            "ttft_ms": ttft.median,
            "tokens_without_text_pct": 100 * (tokens - texts) / max(tokens, 1),
            "failed": failed,
        },
    )


def main() -> int:
    """Measure one server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--stream-tokens", type=int, default=600)
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=7000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("serve", nargs="*", help="options of the server")
    options = parser.parse_args()
    with MachineReport("overload", options.json) as report, serving(options.model, options.tp, options.serve) as server:
        report.add(iter(asyncio.run(measure(server.url, options))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
