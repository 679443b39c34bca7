"""Latency of the ring's all-reduce beside torch.distributed's gloo: two processes, fp32, the same run.

python tests/bench/bench_ring.py [--ranks N]     prints one JSON line per message size; asserts nothing.

Each figure is the median over rounds, in microseconds; a round takes the slower rank. `algorithm_gb_s` is the message's
bytes over the ring's time. `gloo_over_ring` above 1 means that the ring is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numaserve.shm_comm import Ring, create_segment

SIZES = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
SLOT_BYTES = 8 << 20
SECONDS_PER_SIZE = 0.5
FORCED = {"one_shot": 1 << 40, "scatter_gather": 0}


def median_us(ring: Ring, call: Callable[[], object]) -> float:
    """Return the median time of `call`, which is a collective, over as many rounds as fit the time for a size."""
    call()
    begin = time.perf_counter()
    call()
    guess = np.array([time.perf_counter() - begin], np.float32)
    ring.all_reduce(guess)  # all ranks must agree on the number of rounds
    rounds = max(5, min(2000, int(SECONDS_PER_SIZE * ring.world_size / float(guess[0]))))
    times = np.empty(rounds, np.float64)
    for index in range(rounds):
        ring.barrier()
        begin = time.perf_counter()
        call()
        times[index] = time.perf_counter() - begin
    everybody = np.empty((ring.world_size, rounds), np.float64)
    ring.all_gather(times, everybody)
    return statistics.median(everybody.max(axis=0)) * 1e6


def run_rank(fd: int, rank: int, nonce: int, world: int, store: str) -> None:
    """Measure every size; rank 0 prints."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]])
    ring = Ring(fd, rank, nonce, world)
    ring.prefault()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for size in SIZES:
        array = np.zeros(size // 4, np.float32)
        tensor = torch.zeros(size // 4)
        line: dict[str, float] = {"bytes": size, "ranks": world}
        line["ring_us"] = median_us(ring, lambda a=array: ring.all_reduce(a))
        for name, limit in FORCED.items():
            line[f"ring_{name}_us"] = median_us(ring, lambda a=array, limit=limit: ring.all_reduce(a, limit))
        line["gloo_us"] = median_us(ring, lambda t=tensor: dist.all_reduce(t))
        line["gloo_over_ring"] = line["gloo_us"] / line["ring_us"]
        line["algorithm_gb_s"] = size / line["ring_us"] / 1e3
        if rank == 0:
            print(json.dumps({key: round(value, 2) for key, value in line.items()}), flush=True)
    dist.destroy_process_group()


def main() -> int:
    """Start the ranks and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    world = parser.parse_args().ranks
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    with create_segment(world, lanes=1, slot_bytes=SLOT_BYTES) as segment, tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "rank", str(segment.fd), str(rank), str(segment.nonce), str(world), store],
                pass_fds=[segment.fd],
                env=environment,
            )
            for rank in range(world)
        ]
        return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        run_rank(*(int(word) for word in sys.argv[2:6]), sys.argv[6])
    else:
        sys.exit(main())
