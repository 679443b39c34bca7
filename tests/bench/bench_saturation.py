"""Many more clients than a server can run at once, and less KV cache than they would like.

python tests/bench/bench_saturation.py [--model demo] [--clients 32 64 128 512] [--kv-cache-gib 0.24]

Each row has tokens a second of all clients together, as a fraction of the most that any number of clients got, and how
often a sequence had to give way. `kv_demand` is what a full batch would hold at its end, over what there is.
"""

import argparse
import sys
from pathlib import Path

import httpx
from bench_serving import OUTPUT_TOKENS, PROMPT_TOKENS, Server, growth, serving
from numaserve.server.cli.bench_report import MachineReport
from numaserve.workers.bench.rows import Row, Rows

LEAST_REQUESTS = 256


def kv_demand(server: Server) -> float:
    """What the longest batch holds at its end, as a part of the KV cache."""
    info = httpx.get(f"{server.url}/server_info").json()
    return info["max_running_requests"] * (PROMPT_TOKENS + OUTPUT_TOKENS) / (info["num_pages"] * info["page_size"])


def bench(server: Server, options: argparse.Namespace) -> Rows:
    demand = kv_demand(server)
    server.load(options.clients[0], options.clients[0])  # warms up
    rows = []
    for clients in options.clients:
        before = server.samples()
        seen = server.load(clients, max(LEAST_REQUESTS, clients + LEAST_REQUESTS // 2))
        after = server.samples()
        retractions = growth(before, after, "retractions_total")
        rows.append((clients, seen.output_throughput, retractions, seen.failed, seen.latencies["ttft"].p99))
    most = max(throughput for _, throughput, *_ in rows)
    for clients, throughput, retractions, failed, ttft in rows:
        yield Row(
            "saturation",
            {"model": options.model, "clients": clients},
            {
                "kv_demand": demand,
                "tok_s": throughput,
                "of_the_most": throughput / most,
                "retractions": retractions,
                "failed": failed,
                "ttft_p99_ms": ttft,
            },
        )


def main() -> int:
    """Measure one server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--clients", nargs="+", type=int, default=[32, 64, 128, 512])
    parser.add_argument("--kv-cache-gib", default="0.24")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    limits = ["--kv-cache-gib", options.kv_cache_gib, "--max-queued-requests", "1024"]
    with MachineReport("saturation", options.json) as report, serving(options.model, options.tp, limits) as server:
        report.add(bench(server, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
