"""Rates of NUMA nodes, all at once: reading own memory and the memory of other nodes, computing, and barriers."""

import mmap
import time
from collections.abc import Sequence

import numpy as np
from numaserve.kernels import PackedMatrix, Team, barrier_ns, read_bandwidth, read_seconds
from numaserve.shm_comm import Ring
from numaserve.shm_comm.segment import create_segment
from numaserve.workers.bench.group import Say, run_ranks
from numaserve.workers.bench.tasks import NodeRates, UseNode
from numaserve.workers.planning.ceilings import bytes_beyond_caches, rank_ceilings, spare_bytes
from numaserve.workers.planning.placement import RankCores
from numaserve.workers.planning.topology import Topology
from numaserve.workers.process import numa

FORMATS = ("bf16", "int8")
_SLOT_BYTES = 4096
_DEADLINE_S = 120.0  # a rank waits until the slowest node has read
_PASSES_S = 10.0  # no further pass over own memory begins after this time
_REMOTE_PASSES = 4
_COLUMNS = 4096
_SAMPLED_PAGES = 512
_MISPLACED = 0.05  # of the pages: more would make the figure one of several nodes


def measure_nodes(
    topology: Topology, ranks: Sequence[RankCores], say: Say, *, passes: int, nbytes: int | None = None
) -> list[NodeRates]:
    """Measure the node of each rank, while all other ranks measure theirs.

    Each reads `nbytes`, by default more than caches hold, but at most half of what the emptiest node has free. Raises
    `OperatorError` or `RankFailed` if a rank cannot measure.
    """
    free = min(node.free_bytes for node in topology.nodes) // 2
    nbytes = nbytes or min(bytes_beyond_caches(), free, spare_bytes() // len(ranks))
    nodes = [each.node for each in ranks]
    with create_segment(len(ranks), lanes=1, slot_bytes=_SLOT_BYTES) as segment:
        tasks = [
            UseNode(rank, list(each.cpus), nodes, segment.fd, segment.nonce, nbytes, passes)
            for rank, each in enumerate(ranks)
        ]
        return run_ranks(tasks, NodeRates, segment, say)


def use_node(task: UseNode, say: Say) -> NodeRates:
    """Measure one node."""
    world = len(task.nodes)
    numa.bind_memory_to(task.nodes[task.rank])
    team = Team(task.cpus)
    ring = Ring(task.ring_fd, task.rank, task.ring_nonce, world)
    ring.set_deadline(_DEADLINE_S)
    say("reading own memory and computing, on all cores")
    begin = time.perf_counter()
    ring.barrier()
    ceilings = rank_ceilings(team, FORMATS, nbytes=task.nbytes)
    for _ in range(1, task.passes):
        # Rank 0 decides for all, because all ranks have to make the same number of passes.
        goes_on = np.array([time.perf_counter() - begin < _PASSES_S], np.uint8)
        ring.broadcast(goes_on, 0)
        if not goes_on[0]:
            break
        ring.barrier()
        ceilings = ceilings.better(rank_ceilings(team, FORMATS, nbytes=task.nbytes))
    say("barriers")
    ring.barrier()
    barrier_us = barrier_ns(team) * 1e-3
    say("reading own memory on one core")
    ring.barrier()
    core = read_bandwidth(Team(task.cpus[:1]), task.nbytes)
    remote: list[float | None] = [None] * world
    for shift in range(1, world):
        # Each node's memory is read by one other node at a time.
        other = (task.rank + shift) % world
        say(f"reading memory of other nodes, {shift}/{world - 1}")
        remote[other] = _read_from(team, ring, task.nodes[other], task.nbytes)
    ring.barrier()
    return NodeRates(ceilings, core, barrier_us, remote, numa.refusal())


def _read_from(team: Team, ring: Ring, node: int, nbytes: int) -> float | None:
    """Return the bytes per second from memory of a node, or None if the memory does not lie there."""
    memory = PackedMatrix(max(nbytes // (2 * _COLUMNS), 1), _COLUMNS)
    place = (memory.address, memory.nbytes)
    bound = numa.bind_range(*place, node)
    # All untouched memory is one shared page of zeros.
    np.frombuffer(memory.buffer(), np.uint8).fill(1)
    bound &= numa.misplaced_pages([place], node, _SAMPLED_PAGES) * mmap.PAGESIZE <= _MISPLACED * memory.nbytes
    ring.barrier()
    seconds = min(read_seconds(team, [place], fetch_ahead=number % 2 == 0) for number in range(_REMOTE_PASSES))
    ring.barrier()
    return memory.nbytes / seconds if bound else None
