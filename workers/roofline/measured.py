"""The machine that this process runs on, with ceilings that are measured now."""

from __future__ import annotations

from typing import Literal

from numaserve.kernels import barrier_ns
from numaserve.workers.bench.kernels import enter_node
from numaserve.workers.plan import GIB
from numaserve.workers.profiling import rank_ceilings
from numaserve.workers.roofline.machine import Machine
from numaserve.workers.topology import Topology

_FORMATS: tuple[Literal["bf16"], Literal["int8"]] = ("bf16", "int8")
_PASSES = 3  # on a shared machine the first may meet somebody else's work
# A meeting is a barrier over ranks: a few cache lines more, that may lie on another node.
_MEETING_BARRIERS = 4


def measure(topology: Topology) -> Machine:
    """Move to the first node and measure its cores; other nodes are taken to be alike. Memory of other nodes is taken
    to be fetched as fast as own memory is read. Raises `OperatorError` when there is no node to use."""
    team, _ = enter_node(None)
    best = rank_ceilings(team, _FORMATS)
    for _ in range(1, _PASSES):
        best = best.better(rank_ceilings(team, _FORMATS))
    barrier_us = barrier_ns(team) * 1e-3
    return Machine(
        name=f"this machine ({best.isa})",
        node_cores=[len(node.cpus) for node in topology.nodes],
        node_memory_gib=min(node.free_bytes for node in topology.nodes) / GIB,
        node_read_gb_s=best.read_bytes_s / 1e9,
        core_gflop_s={format: best.flops_s[format] / team.size / 1e9 for format in _FORMATS},
        link_gb_s=best.read_bytes_s / 1e9,
        meeting_us=_MEETING_BARRIERS * barrier_us,
        barrier_us=barrier_us,
    )
