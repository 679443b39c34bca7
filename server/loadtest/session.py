"""The two benchmarks from start to end: one server at several rates, and several servers alternately."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numaserve.server.loadtest.options import Traffic, Workload, default_rate
from numaserve.server.loadtest.report.compare import Ratio, ratio_view, ratios
from numaserve.server.loadtest.report.plot import check_plot, write_plot
from numaserve.server.loadtest.report.progress import Progress
from numaserve.server.loadtest.report.report import (
    JsonLines,
    Setting,
    json_details,
    json_record,
    summary_view,
    sweep_table,
)
from numaserve.server.loadtest.report.stats import Summary, summarize
from numaserve.server.loadtest.runner import Bench
from numaserve.server.loadtest.target import open_target
from numaserve.server.loadtest.workload.requests import BenchRequest
from numaserve.workers.interface.errors import OperatorError
from rich.console import Console


@dataclass(frozen=True)
class Output:
    """The destinations of results."""

    console: Console
    output_file: Path | None = None
    details: bool = False
    plot: Path | None = None


@dataclass
class Reporter:
    """The runner of a server's requests, which reports the results."""

    workload: Workload
    traffic: Traffic
    limits: dict[str, float]
    output: Output
    lines: JsonLines

    async def run(
        self, bench: Bench, requests: list[BenchRequest], rate: float | None, seed: int, label: str
    ) -> Summary:
        """Perform one run, and show and write its figures."""
        with Progress(label, len(requests)) as progress:
            run = await bench.run(requests, rate, seed, progress.done)
        summary = summarize(run.outcomes, run.duration_s, self.limits, run.speculation)
        client = bench.client
        setting = Setting(client.target.base_url, client.model, self.workload, self.traffic, rate, seed)
        self.output.console.print(summary_view(setting, summary))
        record = json_record(setting, summary, bench.notes)
        self.lines.write(record | (json_details(run.outcomes) if self.output.details else {}))
        return summary

    def show_notes(self, bench: Bench) -> None:
        """Show the notes on the limits of this server's figures."""
        for note in bench.notes:
            self.output.console.print(f"note: {bench.client.target.base_url}: {note}", markup=False)


async def bench_serve(
    base_url: str,
    workload: Workload,
    traffic: Traffic,
    *,
    rates: Sequence[float],
    limits: dict[str, float],
    output: Output,
) -> list[Summary]:
    """Perform a run for each rate. Each run has its own prompts (seed, seed + 1, ...), so that none hits the cache."""
    if output.plot is not None:
        check_plot(output.plot)
    reporter = Reporter(workload, traffic, limits, output, JsonLines(output.output_file))
    asked: list[float | None] = [*rates] or [default_rate(workload)]
    summaries: list[Summary] = []
    async with open_target(base_url, traffic) as target:
        bench = await Bench.connect(target, workload, traffic)
        reporter.show_notes(bench)
        for seed, rate in enumerate(asked, traffic.seed):
            requests = await bench.requests(seed)
            if not summaries:
                await bench.warm_up(requests, seed)
            summaries.append(await reporter.run(bench, requests, rate, seed, f"{len(summaries) + 1}/{len(asked)}"))
    if len(asked) > 1:
        output.console.print(sweep_table(asked, summaries))
    if output.plot is not None:
        write_plot(output.plot, f"{bench.client.model}, {workload.dataset_name}", asked, summaries)
        output.console.print(f"plot: {output.plot}", markup=False)
    return summaries


async def bench_compare(
    base_urls: Sequence[str],
    workload: Workload,
    traffic: Traffic,
    *,
    rate: float | None,
    rounds: int,
    pause_s: float,
    output: Output,
) -> list[Summary]:
    """Benchmark the servers alternately, `rounds` times each. Requests are the same within a round and differ by round.

    Each run starts after a pause of `pause_s` seconds: the threads of a server that spin after its last answer would
    slow down the next server's first request.
    """
    reporter = Reporter(workload, traffic, {}, output, JsonLines(output.output_file))
    rate = default_rate(workload) if rate is None else rate
    by_server: list[list[Summary]] = [[] for _ in base_urls]
    async with AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(open_target(url, traffic)) for url in base_urls]
        if len({target.root for target in targets}) < len(targets) and not traffic.flush_cache:
            raise OperatorError("a server that is compared with itself has the prompts in its cache: add --flush-cache")
        benches = [await Bench.connect(target, workload, traffic) for target in targets]
        if not all(bench.client.dialect.token_ids for bench in benches):
            for bench in benches:
                await bench.use_text()
        for bench in benches:
            reporter.show_notes(bench)
        for index in range(rounds):
            seed = traffic.seed + index
            requests = await benches[0].requests(seed)
            for bench in benches if index == 0 else ():
                await bench.warm_up(requests, seed)
            for bench, summaries in zip(benches, by_server, strict=True):
                label = f"round {index + 1}/{rounds} {bench.client.target.base_url}"
                await asyncio.sleep(pause_s)
                summaries.append(await reporter.run(bench, requests, rate, seed, label))
    for url, summaries in zip(base_urls[1:], by_server[1:], strict=True):
        found = ratios(by_server[0], summaries)
        output.console.print(ratio_view(base_urls[0], url, found))
        reporter.lines.write(_ratio_record(base_urls[0], url, found))
    return [summary for summaries in by_server for summary in summaries]


def _ratio_record(first: str, other: str, found: Sequence[Ratio]) -> dict[str, Any]:
    return {"compare": [first, other], "ratios": [asdict(ratio) for ratio in found]}
