"""The cost of a gateway: processor time for each streamed token, and time added to an answer.

python tests/bench/bench_gateway.py [--model demo] [--concurrency 1 16] [--tokens 256] [--json FILE]

The same streams are requested alternately from the gateway and from the model's server. The client is a bare reader
of bytes, and shares the machine with both.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from numaserve.server.cli.bench_report import MachineReport
from numaserve.workers.bench.rows import Row, Rows

URL = re.compile(r"served at (http://[\d.]+:\d+)")
ROUNDS = 3


class Gateway:
    """A `numaserve serve --models` with one model, called m."""

    def __init__(self, model: str, folder: Path) -> None:
        file = folder / "models.yaml"
        place = {"model": model, "tp": 1, "weights_cache_gib": 0, "kv_cache_gib": 0.5}
        file.write_text(json.dumps({"models": {"m": place}}))
        command = [sys.executable, "-m", "numaserve.server.cli.main", "serve", "--models", str(file), "--port", "0"]
        self._process = subprocess.Popen([*command, "--log-level", "warning"], stdout=subprocess.PIPE, text=True)
        found = URL.search(self._process.stdout.readline())
        if found is None:
            raise RuntimeError(f"the server did not start; its exit status is {self._process.wait()}")
        self.url = found[1]
        self.process = psutil.Process(self._process.pid)
        (self.server,) = self.process.children()

    def socket_path(self) -> str:
        """Where the model's server listens."""
        (path,) = {each.laddr for each in self.server.net_connections("unix") if str(each.laddr).endswith("m0.sock")}
        return str(path)

    def stop(self) -> None:
        """End all of it."""
        self._process.terminate()
        self._process.wait(60)


def seconds(process: psutil.Process) -> float:
    """Processor time that a process has taken, without its children."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def streamed(session: aiohttp.ClientSession, url: str, tokens: int) -> int:
    """Read one stream; its events."""
    body: dict[str, Any] = {"model": "m", "prompt": [5, 6, 7, 8], "max_tokens": tokens, "stream": True}
    async with session.post(f"{url}/v1/completions", json=body | {"ignore_eos": True, "temperature": 0}) as answer:
        events = 0
        async for piece in answer.content.iter_any():
            events += piece.count(b"data: ")
        return events - 1  # the last one says that it is over


async def measured(door: Gateway, concurrency: int, tokens: int) -> Row:
    """Stream alternately through the gateway and past it."""
    took: dict[str, list[float]] = {"through": [], "past": []}
    cpu: list[float] = []
    for way in ("past", "through") * ROUNDS:
        past = way == "past"
        connector = aiohttp.UnixConnector(door.socket_path(), limit=0) if past else aiohttp.TCPConnector(limit=0)
        url = "http://model" if past else door.url
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as session:
            used, began = seconds(door.process), time.perf_counter()
            counts = await asyncio.gather(*(streamed(session, url, tokens) for _ in range(concurrency)))
            took[way].append(time.perf_counter() - began)
            if not past:
                cpu.append((seconds(door.process) - used) / sum(counts))
    through, past_it = (statistics.median(took[way]) for way in ("through", "past"))
    figures = {
        "cpu_us": 1e6 * statistics.median(cpu),
        "through_s": through,
        "past_s": past_it,
        "added_us": 1e6 * (through - past_it) / tokens,
    }
    return Row("gateway, a token", {"streams": concurrency, "tokens": tokens}, figures)


def bench_streams(door: Gateway, concurrency: int, tokens: int) -> Rows:
    """What a token of so many streams costs."""
    asyncio.run(measured(door, concurrency, 32))  # what is done once
    yield asyncio.run(measured(door, concurrency, tokens))


def main() -> int:
    """Measure every number of streams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, MachineReport("gateway", arguments.json) as report:
        door = Gateway(arguments.model, Path(folder))
        try:
            for concurrency in arguments.concurrency:
                report.add(bench_streams(door, concurrency, arguments.tokens))
        finally:
            door.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
