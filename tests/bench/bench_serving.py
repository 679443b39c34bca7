"""The whole server over a model: start, streams, idle.

python tests/bench/bench_serving.py [--model demo] [--tp 1 2] [--concurrency 1 16 64] [--json FILE]

The client is that of `numaserve bench serve`, and shares the machine with the server. `share_native` is how much of the
time of steps went by inside the native call; the rest is the way to the workers and back, scheduling and streaming.
"""

import argparse
import asyncio
import math
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
from numaserve.server.cli.bench_report import MachineReport
from numaserve.server.loadtest.options import Traffic, Workload
from numaserve.server.loadtest.report.stats import Summary, summarize
from numaserve.server.loadtest.runner import Bench
from numaserve.server.loadtest.target import open_target
from numaserve.workers.bench.rows import Row, Rows
from prometheus_client.parser import text_string_to_metric_families

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 128
REQUESTS = 3  # of each stream
STARTS = 2
IDLE_SECONDS = 10.0
STOP_SECONDS = 40.0
URL = re.compile(r"served at (http://[\d.]+:\d+)")

Samples = dict[tuple[str, str], float]  # by name and value of the only label beside the model's name, or ""


class Server:
    """A `numaserve serve` in a process of its own."""

    def __init__(self, model: str, tp: int, options: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "numaserve.server.cli.main", "serve", model, "--port", "0", "--tp", str(tp)]
        command += ["--weights-cache-gib", "0", *options]
        self._launched = time.perf_counter()
        self._process = subprocess.Popen([*command, "--log-level", "warning"], stdout=subprocess.PIPE, text=True)
        line = self._process.stdout.readline()
        found = URL.search(line)
        if found is None:
            raise RuntimeError(f"the server did not start; its exit status is {self._process.wait()}")
        self.ready_seconds = self.age()
        self.url = found[1]

    def age(self) -> float:
        """Seconds since it was launched."""
        return time.perf_counter() - self._launched

    def stop(self) -> None:
        """End it and its workers."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def cpu_seconds(self) -> float:
        """Processor time that the front end and every process below it have taken."""
        front = psutil.Process(self._process.pid)
        times = [process.cpu_times() for process in (front, *front.children(recursive=True))]
        return sum(time.user + time.system for time in times)

    def front_cpu_seconds(self) -> float:
        """Processor time of the front end's own process."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def resident_mib(self) -> float:
        """Memory of the front end and every process below it, in which shared pages count once."""
        front = psutil.Process(self._process.pid)
        nbytes = 0
        for process in (front, *front.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # a fork of an image decoder that has just ended
                nbytes += process.memory_full_info().pss
        return nbytes / 2**20

    def samples(self) -> Samples:
        """What /metrics says, without the buckets of histograms."""
        text = httpx.get(f"{self.url}/metrics").text
        return {
            (sample.name.removeprefix("numaserve_"), _own_label(sample.labels)): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if "le" not in sample.labels
        }

    def load(self, concurrency: int, requests: int, tokens: int = OUTPUT_TOKENS) -> Summary:
        """What clients see of so many requests of so many output tokens, so many at a time."""
        workload = Workload(num_prompts=requests, random_input_len=PROMPT_TOKENS, random_output_len=tokens)
        return asyncio.run(self._load(workload, Traffic(max_concurrency=concurrency, warmup_requests=0)))

    async def _load(self, workload: Workload, traffic: Traffic) -> Summary:
        # Every load has prompts of its own, of which none is found in the cache.
        seed = time.monotonic_ns() % (1 << 30)
        async with open_target(self.url, traffic) as target:
            bench = await Bench.connect(target, workload, traffic)
            run = await bench.run(await bench.requests(seed), math.inf, seed, lambda _: None)
        return summarize(run.outcomes, run.duration_s, {})


@contextmanager
def serving(model: str, tp: int, options: Sequence[str] = ()) -> Iterator[Server]:
    """A server that is gone afterwards. `options` are more of those of `numaserve serve`."""
    server = Server(model, tp, options)
    try:
        yield server
    finally:
        server.stop()


def _own_label(labels: dict[str, str]) -> str:
    return next((value for label, value in labels.items() if label != "model_name"), "")


def growth(before: Samples, after: Samples, name: str, label: str | None = None) -> float:
    """By how much a counter grew, over all its labels or one."""
    keys = [key for key in after if key[0] == name and label in (None, key[1])]
    return sum(after[key] - before.get(key, 0.0) for key in keys)


def bench_start(model: str, tp: int) -> Rows:
    """Launch to the first token, from nothing to a client that has it."""
    ready, first = [], []
    for _ in range(STARTS):
        with serving(model, tp) as server:
            before = server.age()
            first.append(before + server.load(1, 1).latencies["ttft"].median / 1e3)
            ready.append(server.ready_seconds)
    yield Row("start", {"model": model, "tp": tp}, {"ready_s": min(ready), "first_token_s": min(first)})


def bench_streams(server: Server, model: str, tp: int, concurrency: int) -> Rows:
    """Tokens a second of all streams together, and where the time of a step goes."""
    server.load(concurrency, concurrency)
    before = server.samples()
    seen = server.load(concurrency, REQUESTS * concurrency)
    after = server.samples()
    stages = [label for name, label in after if name == "step_stage_seconds_sum"]
    busy = growth(before, after, "step_seconds_sum")
    spent = {stage: growth(before, after, "step_stage_seconds_sum", stage) for stage in stages}
    count = growth(before, after, "step_seconds_count")
    yield Row(
        "streams",
        {"model": model, "tp": tp, "concurrency": concurrency},
        {
            "tok_s": seen.output_throughput,
            "ttft_ms": seen.latencies["ttft"].median,
            "tpot_ms": seen.latencies["tpot"].median,
            "step_us": busy / count * 1e6,
            **{f"{stage}_us": seconds / count * 1e6 for stage, seconds in spent.items()},
            "share_native": spent["native"] / busy,
        },
    )


def bench_idle(server: Server, model: str, tp: int) -> Rows:
    """Processor time of all processes while nobody asks anything."""
    time.sleep(1.0)
    before = server.cpu_seconds()
    time.sleep(IDLE_SECONDS)
    used = server.cpu_seconds() - before
    yield Row("idle", {"model": model, "tp": tp}, {"cpu_s": used, "of_one_core": used / IDLE_SECONDS})


def main() -> int:
    """Measure a model on every number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tp", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with MachineReport("serving", arguments.json) as report:
        for tp in arguments.tp:
            report.add(bench_start(arguments.model, tp))
            with serving(arguments.model, tp) as server:
                for concurrency in arguments.concurrency:
                    report.add(bench_streams(server, arguments.model, tp, concurrency))
                report.add(bench_idle(server, arguments.model, tp))
    return 0


if __name__ == "__main__":
    sys.exit(main())
