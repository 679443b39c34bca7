"""The whole server over the demo model: start, idle, one stream, many streams.

python tests/bench/bench_serving.py [--model demo] [--tp 1 2] [--concurrency 1 16 64]

The clients are bare sockets in one process: they share the machine with the server, and an HTTP library would take a
larger share than the front end. `share_native` is how much of the time between tokens (one stream) or between steps
(many) went by inside the native call; the rest is the way to the workers and back, scheduling and streaming.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
from bench_common import Report, Times
from prometheus_client.parser import text_string_to_metric_families

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 128
SETTLED_TOKENS = 8  # of one stream, before its figures are read for the first time
REPETITIONS = 3
STARTS = 2
IDLE_SECONDS = 10.0
STOP_SECONDS = 40.0
MODEL_NAME = "bench"
URL = re.compile(r"served at http://([\d.]+):(\d+)")

Samples = dict[tuple[str, str], float]  # by name and value of the only label, or ""


class Server:
    """A `numaserve serve` in a process of its own."""

    def __init__(self, model: str, tp: int) -> None:
        command = [sys.executable, "-m", "numaserve.server.cli.main", "serve", model, "--port", "0", "--tp", str(tp)]
        command += ["--weights-cache-gib", "0"]
        command += ["--served-model-name", MODEL_NAME, "--log-level", "warning"]
        self._launched = time.perf_counter()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._prompts = np.random.default_rng(0)
        line = self._process.stdout.readline()
        found = URL.search(line)
        if found is None:
            raise RuntimeError(f"the server did not start; its exit status is {self._process.wait()}")
        self.ready_seconds = self.age()
        self._host, self._port = found[1], int(found[2])

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

    def samples(self) -> Samples:
        """What /metrics says, without the buckets of histograms."""
        with urllib.request.urlopen(f"http://{self._host}:{self._port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return {
            (sample.name.removeprefix("numaserve_"), next(iter(sample.labels.values()), "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if "le" not in sample.labels
        }

    async def stream(self, *, settled: Any = None) -> list[float]:
        """Seconds after which each token of a completion came. `settled` is awaited after the first few."""
        # Random tokens: no two prompts share a prefix, so none is found in the cache.
        prompt = self._prompts.integers(1000, 40000, PROMPT_TOKENS).tolist()
        body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0}
        payload = json.dumps(body | {"stream": True, "ignore_eos": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
        reader, writer = await asyncio.open_connection(self._host, self._port)
        begin = time.perf_counter()
        writer.write(head.encode() + payload)
        if b" 200 " not in (status := await reader.readline()):
            raise RuntimeError(f"the server answered {(status + await reader.read()).decode()!r}")
        arrivals: list[float] = []
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                arrivals.append(time.perf_counter() - begin)
                if len(arrivals) == SETTLED_TOKENS and settled is not None:
                    await settled()
        writer.close()
        return arrivals


@contextmanager
def serving(model: str, tp: int) -> Iterator[Server]:
    """A server that is gone afterwards."""
    server = Server(model, tp)
    try:
        yield server
    finally:
        server.stop()


def growth(before: Samples, after: Samples, name: str, label: str | None = None) -> float:
    """By how much a counter grew, over all its labels or one."""
    keys = [key for key in after if key[0] == name and label in (None, key[1])]
    return sum(after[key] - before.get(key, 0.0) for key in keys)


def mean(before: Samples, after: Samples, name: str, label: str = "") -> float:
    """Mean of what a histogram observed."""
    return growth(before, after, f"{name}_sum", label) / max(1.0, growth(before, after, f"{name}_count", label))


def bench_start(report: Report, model: str, tp: int) -> None:
    """Launch to the first token, from nothing to a client that has it."""
    ready, first = [], []
    for _ in range(STARTS):
        with serving(model, tp) as server:
            before = server.age()
            first.append(before + asyncio.run(server.stream())[0])
            ready.append(server.ready_seconds)
    report.add(
        "start", model=model, tp=tp, ready_s=min(ready), first_token_s=min(first), first_token_worst_s=max(first)
    )


def bench_idle(report: Report, server: Server, model: str, tp: int) -> None:
    """Processor time of all processes while nobody asks anything."""
    time.sleep(1.0)
    before = server.cpu_seconds()
    time.sleep(IDLE_SECONDS)
    used = server.cpu_seconds() - before
    report.add("idle", model=model, tp=tp, seconds=IDLE_SECONDS, cpu_s=used, of_one_core=used / IDLE_SECONDS)


def bench_one_stream(report: Report, server: Server, model: str, tp: int) -> None:
    """Where the time between two tokens goes with one stream."""
    for _ in range(REPETITIONS):
        marks: list[Samples] = []

        async def mark(marks: list[Samples] = marks) -> None:
            marks.append(await asyncio.to_thread(server.samples))

        asyncio.run(server.stream(settled=mark))
        before, after = marks[0], server.samples()
        gap = mean(before, after, "inter_token_latency_seconds")
        stages = stage_means(before, after)
        report.add(
            "one stream",
            model=model,
            tp=tp,
            gap_ms=gap * 1e3,
            share_native=stages["native"] / gap,
            **{f"{stage}_us": seconds * 1e6 for stage, seconds in stages.items()},
        )


def stage_means(before: Samples, after: Samples) -> dict[str, float]:
    """Mean seconds of each stage of a step."""
    stages = [label for name, label in after if name == "step_stage_seconds_sum"]
    return {stage: mean(before, after, "step_stage_seconds", stage) for stage in stages}


def bench_streams(report: Report, server: Server, model: str, tp: int, concurrency: int) -> None:
    """Tokens a second of all streams together, and where the time of a step goes."""

    async def everybody() -> list[list[float]]:
        return await asyncio.gather(*(server.stream() for _ in range(concurrency)))

    elapsed, first, rest = [], [], []
    before = server.samples()
    for _ in range(REPETITIONS):
        begin = time.perf_counter()
        streams = asyncio.run(everybody())
        elapsed.append(time.perf_counter() - begin)
        first += [arrivals[0] for arrivals in streams]
        rest += [(arrivals[-1] - arrivals[0]) / (OUTPUT_TOKENS - 1) for arrivals in streams]
    after = server.samples()
    times = Times.of(elapsed)
    tokens = concurrency * OUTPUT_TOKENS
    busy = growth(before, after, "step_seconds_sum")
    report.add(
        "streams",
        model=model,
        tp=tp,
        concurrency=concurrency,
        best_tok_s=tokens / times.best,
        median_tok_s=tokens / times.median,
        ttft_ms=statistics.median(first) * 1e3,
        tpot_ms=statistics.median(rest) * 1e3,
        share_native=growth(before, after, "step_stage_seconds_sum", "native") / busy,
        share_all_reduce=growth(before, after, "step_stage_seconds_sum", "all_reduce") / busy,
        **{f"{stage}_us": seconds * 1e6 for stage, seconds in stage_means(before, after).items()},
    )


def main() -> int:
    """Measure a model on every number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tp", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 16, 64])
    arguments = parser.parse_args()
    report = Report("serving")
    for tp in arguments.tp:
        bench_start(report, arguments.model, tp)
        with serving(arguments.model, tp) as server:
            bench_one_stream(report, server, arguments.model, tp)
            for concurrency in arguments.concurrency:
                bench_streams(report, server, arguments.model, tp, concurrency)
            bench_idle(report, server, arguments.model, tp)
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
