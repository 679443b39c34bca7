"""All-reduce over the ring compared with torch.distributed's gloo, on one thread per rank, fp32, in the same run.

Each figure is the median over rounds. The time of a round is the time of its slowest rank.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numaserve.kernels import Team
from numaserve.shm_comm import Ring
from numaserve.shm_comm.segment import create_segment
from numaserve.workers.bench.group import Say, run_ranks
from numaserve.workers.bench.rows import Figure, Row, Rows
from numaserve.workers.bench.tasks import Reduced, UseRing
from numaserve.workers.planning.ceilings import rank_ceilings
from numaserve.workers.planning.placement import place_ranks
from numaserve.workers.planning.topology import read_topology
from numaserve.workers.process import numa

SIZES = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
Collective = Callable[[npt.NDArray[np.float32]], object]
_SLOT_BYTES = 8 << 20
_MAX_ROUNDS = 2000
_FORCED = {"one_shot": 1 << 40, "scatter_gather": 0}


def bench_ring(world: int, sizes: Sequence[int], seconds: float, *, gloo: bool, say: Say) -> Rows:
    """Measure a row for each size. Raises `OperatorError` for more ranks than there are cores."""
    ranks = place_ranks(read_topology(), world, 1, reserve_core=False).ranks
    with create_segment(world, lanes=1, slot_bytes=_SLOT_BYTES) as segment, tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store") if gloo else None
        tasks = [
            UseRing(rank, world, each.cpus[0], each.node, segment.fd, segment.nonce, list(sizes), seconds, store)
            for rank, each in enumerate(ranks)
        ]
        answers = run_ranks(tasks, Reduced, segment, say)
    slowest = min(answer.read_bytes_s for answer in answers)
    for size, median_us in zip(sizes, answers[0].median_us, strict=True):
        yield Row("all-reduce", {"ranks": world, "bytes": size}, _figures(world, size, median_us, slowest))


def _figures(world: int, size: int, median_us: dict[str, float], read_bytes_s: float) -> dict[str, Figure]:
    ring_us = median_us["ring"]
    figures: dict[str, Figure] = {f"{way}_us": us for way, us in median_us.items()}
    if "gloo" in median_us:
        figures["gloo_over_ring"] = median_us["gloo"] / ring_us
    # Every rank has to read the others' values of its share, and then the others' sums.
    read = 2.0 * size * (world - 1) / world
    return figures | {"gb_s": size / ring_us / 1e3, "of_read_bandwidth": read / read_bytes_s / (ring_us * 1e-6)}


def use_ring(task: UseRing, say: Say) -> Reduced:
    """Measure the collectives of one rank, over the ring and its alternatives."""
    numa.bind_memory_to(task.node)
    team = Team([task.cpu])
    ring = Ring(task.ring_fd, task.rank, task.ring_nonce, task.world_size)
    ring.prefault()
    read = rank_ceilings(team, teams=task.world_size).read_rate
    ways: dict[str, Collective] = {"ring": ring.all_reduce, "barrier": lambda _: ring.barrier()}
    ways |= {name: partial(ring.all_reduce, one_shot_bytes=limit) for name, limit in _FORCED.items()}
    if task.store is not None:
        ways["gloo"] = _gloo(task, task.store)
    found = []
    for size in task.sizes:
        say(f"all-reduce of {size} bytes over {task.world_size} ranks")
        array = np.zeros(size // 4, np.float32)
        found.append({name: _median_us(ring, partial(way, array), task.seconds) for name, way in ways.items()})
    read = max(read, rank_ceilings(team, teams=task.world_size).read_rate)
    return Reduced(read, found)


def _gloo(task: UseRing, store: str) -> Collective:
    # Heavy, and needed only for the comparison with the ring.
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=task.rank, world_size=task.world_size)
    return lambda array: dist.all_reduce(torch.from_numpy(array))


def _median_us(ring: Ring, call: Callable[[], object], seconds: float) -> float:
    """Return the median time of a collective, over a number of rounds that fits the time and that all ranks agree
    on."""
    call()
    begin = time.perf_counter()
    call()
    guess = np.array([time.perf_counter() - begin], np.float32)
    ring.all_reduce(guess)
    rounds = max(5, min(_MAX_ROUNDS, int(seconds * ring.world_size / float(guess[0]))))
    times = np.empty(rounds, np.float64)
    for index in range(rounds):
        ring.barrier()
        begin = time.perf_counter()
        call()
        times[index] = time.perf_counter() - begin
    everybody = np.empty((ring.world_size, rounds), np.float64)
    ring.all_gather(times, everybody)
    slowest: list[float] = everybody.max(axis=0).tolist()
    return statistics.median(slowest) * 1e6
