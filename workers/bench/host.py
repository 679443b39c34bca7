"""The measurements of ``numaserve doctor``: all nodes of this host, in about a minute at most."""

from numaserve.workers.bench.group import Say
from numaserve.workers.bench.operations.lines import measure_lines
from numaserve.workers.bench.operations.nodes import measure_nodes
from numaserve.workers.bench.operations.ring import bench_ring
from numaserve.workers.planning.doctor.rates import HostRates
from numaserve.workers.planning.placement import place_ranks
from numaserve.workers.planning.topology import Topology

_PASSES = 3  # on a shared machine the first may coincide with other work
_PAIRS = 32  # of cores, of the same node and of different ones
_MEETING_BYTES = 4
_MEETING_SECONDS = 0.1


def measure_host(
    topology: Topology, say: Say, *, passes: int = _PASSES, pairs: int = _PAIRS, nbytes: int | None = None
) -> HostRates:
    """Measure the nodes of `topology`, on the cores within the CPU quota. Raises `OperatorError` or `RankFailed`.

    `nbytes` are read of each node's memory; None stands for more than caches hold.
    """
    ranks = place_ranks(topology, None, None, reserve_core=False).ranks
    nodes = measure_nodes(topology, ranks, say, passes=passes, nbytes=nbytes)
    same, other = measure_lines(ranks, pairs, say)
    return HostRates(
        nodes=[each.node for each in ranks],
        ceilings=[each.ceilings for each in nodes],
        core_read_gb_s=[each.core_read_bytes_s / 1e9 for each in nodes],
        remote_gb_s=[[None if rate is None else rate / 1e9 for rate in each.remote_bytes_s] for each in nodes],
        barrier_us=[each.barrier_us for each in nodes],
        meeting_us=_meeting_us(max(2, len(ranks)), sum(len(each.cpus) for each in ranks), say),
        same_node_ns=same,
        other_node_ns=other,
        refusal=next((each.refusal for each in nodes if each.refusal), ""),
    )


def _meeting_us(world: int, cores: int, say: Say) -> float | None:
    """Return the microseconds of a barrier over the ring; of two ranks where there is one node."""
    if cores < world:
        return None
    (row,) = bench_ring(world, [_MEETING_BYTES], _MEETING_SECONDS, gloo=False, say=say)
    return float(str(row.figures["barrier_us"]))
