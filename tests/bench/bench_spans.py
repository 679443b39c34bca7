"""What OpenTelemetry's spans cost: two servers, one with them and one without, are asked the same by turns.

python tests/bench/bench_spans.py [--model demo] [--concurrency 16 64] [--tokens 32] [--rounds 5] [--json FILE]

Before that, what the spans of one sequence take is measured alone: of the event loop, and with what encodes and sends
them. The collector throws away what it is sent. It shares the machine with the client and both servers.
`throughput` and `cpu` are ratios, with spans by without, each the median over rounds; `cpu` is the front end's. What
spans cost is of a request, whatever its length: the answers are short, so that it can be seen.
"""

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench_serving import REQUESTS, Server, serving
from numaserve.server.cli.bench_report import MachineReport
from numaserve.server.engine.views.traces import SequenceTrace
from numaserve.server.tracing.spans import Spans
from numaserve.workers.bench.rows import Row, Rows

ROUNDS = 5
SEQUENCES = 480  # fewer spans than the library keeps for its thread: none is dropped
OPTIONS = ("--kv-cache-gib", "0.25", "--threads-per-worker", "1")


class Discard(BaseHTTPRequestHandler):
    """Takes what is posted, and keeps nothing of it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Read it to its end, and say that it was taken."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.batches.value += 1
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


class Collector:
    """A collector in a process of its own, whose time is nobody else's; `batches` counts what it was sent."""

    def __init__(self) -> None:
        self.batches = multiprocessing.Value("i", 0)
        ports: multiprocessing.SimpleQueue[int] = multiprocessing.SimpleQueue()
        self._process = multiprocessing.Process(target=self._serve, args=(ports,), daemon=True)
        self._process.start()
        self.endpoint = f"http://127.0.0.1:{ports.get()}"

    def _serve(self, ports: "multiprocessing.SimpleQueue[int]") -> None:
        with ThreadingHTTPServer(("127.0.0.1", 0), Discard) as server:
            server.batches = self.batches
            ports.put(server.server_port)
            server.serve_forever()

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.join()


def bench_sequences(collector: Collector) -> Rows:
    """What the spans of one sequence take of the event loop's time, and with encoding and sending of the process's."""
    trace = SequenceTrace("id", f"00-{'1' * 32}-{'2' * 16}-01", 100.0, 101.0, 103.0, 107.0, 12, 4, 5, "stop")
    loop, whole = [], []
    for _ in range(ROUNDS):
        spans = Spans(collector.endpoint, model="m", version="1")
        thread, process = time.thread_time(), time.process_time()
        for _ in range(SEQUENCES):
            spans.sequence_ended(trace)
        loop.append(1e6 * (time.thread_time() - thread) / SEQUENCES)
        spans.close()
        whole.append(1e6 * (time.process_time() - process) / SEQUENCES)
    yield Row("spans of a sequence", {"rounds": ROUNDS}, {"loop_us": min(loop), "cpu_us": min(whole)})


def bench_streams(ways: Sequence[Server], concurrency: int, tokens: int, rounds: int) -> Rows:
    """So many streams at a time of the server without spans and of the one with them, by turns."""
    throughput, cpu, token = [], [], []
    for server in ways:
        server.load(concurrency, concurrency, tokens)
    requests = REQUESTS * concurrency
    for _ in range(rounds):
        seen, used = [], []
        for server in ways:
            before = server.front_cpu_seconds()
            seen.append(server.load(concurrency, requests, tokens).output_throughput)
            used.append(server.front_cpu_seconds() - before)
        throughput.append(seen[1] / seen[0])
        cpu.append(used[1] / used[0])
        token.append(1e6 * used[0] / (requests * tokens))
    figures = {
        "throughput": statistics.median(throughput),
        "throughput_least": min(throughput),
        "throughput_most": max(throughput),
        "cpu": statistics.median(cpu),
        "cpu_least": min(cpu),
        "cpu_most": max(cpu),
        "cpu_us_a_token_without": statistics.median(token),
    }
    yield Row("with spans by without", {"streams": concurrency, "tokens": tokens, "rounds": rounds}, figures)


def main() -> int:
    """Measure every number of streams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--concurrency", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with (
        MachineReport("spans", arguments.json) as report,
        closing(Collector()) as collector,
        serving(arguments.model, 1, OPTIONS) as off,
        serving(arguments.model, 1, [*OPTIONS, "--otlp-endpoint", collector.endpoint]) as on,
    ):
        report.add(bench_sequences(collector))
        for concurrency in arguments.concurrency:
            report.add(bench_streams((off, on), concurrency, arguments.tokens, arguments.rounds))
        assert collector.batches.value, "no spans have come"
    return 0


if __name__ == "__main__":
    sys.exit(main())
