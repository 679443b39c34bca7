"""A cluster of two nodes on this machine, and what the application must do on it. Runs in Ray's environment."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import ray
from numaserve.ray.application import build
from numaserve.ray.settings import Settings
from ray import serve
from ray.cluster_utils import Cluster
from ray_checks import CHECKS, Bench
from ray_costs import costs

STORE_BYTES = 80 * 2**20
NODES_OF_HEAD, NODES_OF_OTHER = 1, 2


def main() -> int:
    """Run the checks that are named, or all; how many failed."""
    folder, python, *names = sys.argv[1:]
    assert inspect.signature(build).parameters["settings"].annotation is Settings, "Serve would give it a dictionary"
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "resources": {"numa_node": NODES_OF_HEAD, "head": 1},
            "include_dashboard": False,
            "object_store_memory": STORE_BYTES,
        },
    )
    other = cluster.add_node(num_cpus=2, resources={"numa_node": NODES_OF_OTHER}, object_store_memory=STORE_BYTES)
    ray.init(address=cluster.address, log_to_driver=bool(os.environ.get("VERBOSE")), logging_level=logging.WARNING)
    try:
        port = _free_port()
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        serve.run(build(_settings(Path(folder), python)), logging_config={"log_level": "WARNING"})
        return asyncio.run(_run(Bench(f"http://127.0.0.1:{port}", cluster, other), names))
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


def _settings(folder: Path, python: str) -> Settings:
    # One core each, by turns: four nodes where there may be two cores.
    cores = sorted(os.sched_getaffinity(0))
    for node in range(NODES_OF_HEAD + NODES_OF_OTHER + 1):
        place = folder / "nodes" / f"node{node}"
        place.mkdir(parents=True)
        (place / "cpulist").write_text(f"{cores[node % len(cores)]}\n")
    return Settings(
        model="demo",
        options="--kv-cache-gib 0.3 --context-length 2048 --max-running-requests 8 --log-level warning",
        max_replicas=3,
        target_requests=4,
        upscale_delay_s=1,
        downscale_delay_s=4,
        look_back_s=11,
        drain_seconds=20,
        ingress_resources={"head": 0.01},
        nodes_folder=str(folder / "nodes"),
        command=["env", f"PYTHONPATH={os.environ['SERVER_PYTHONPATH']}", python, "-m", "numaserve.server.cli.main"],
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


async def _run(bench: Bench, names: list[str]) -> int:
    failed = 0
    async with bench:
        for name, check in (CHECKS | {"costs": costs}).items():
            if names and name not in names:
                continue
            try:
                said = await check(bench)
            except Exception:  # the others are run all the same
                traceback.print_exc()
                said, failed = "FAILED", failed + 1
            print(f"| {name} | {said} |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(int(main() > 0))
