"""The machine that this process runs on, with ceilings that are measured now."""

from typing import Literal

from numaserve.kernels import barrier_ns
from numaserve.workers.bench.kernels import enter_node
from numaserve.workers.planning.ceilings import rank_ceilings
from numaserve.workers.planning.roofline.machine import Machine, machine_of
from numaserve.workers.planning.topology import Topology

_FORMATS: tuple[Literal["bf16"], Literal["int8"]] = ("bf16", "int8")
_PASSES = 3  # on a shared machine the first may coincide with other work


def measure(topology: Topology) -> Machine:
    """Move to the first node and measure its cores; other nodes are assumed to be alike. Memory of other nodes is
    assumed to be fetched as fast as own memory is read. Raises `OperatorError` when there is no node to use."""
    team, _ = enter_node(None)
    best = rank_ceilings(team, _FORMATS)
    for _ in range(1, _PASSES):
        best = best.better(rank_ceilings(team, _FORMATS))
    return machine_of(best, topology, barrier_ns(team) * 1e-3)
