"""The machine that this process runs on, with ceilings that are measured now."""

from __future__ import annotations

from typing import Literal

from numaserve.kernels import barrier_ns
from numaserve.workers.bench.kernels import enter_node
from numaserve.workers.planning.ceilings import rank_ceilings
from numaserve.workers.planning.plan import GIB
from numaserve.workers.planning.roofline.machine import INT8_FORMATS, Machine
from numaserve.workers.planning.topology import Topology
from numaserve.workers.protocol import Ceilings

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
    return machine_of(best, topology, barrier_ns(team) * 1e-3)


def machine_of(ceilings: Ceilings, topology: Topology, barrier_us: float) -> Machine:
    """With ceilings of one node. Where no format that is multiplied in int8 was measured, none is used."""
    bf16 = ceilings.flops_s["bf16"]
    int8 = next((flops for format, flops in ceilings.flops_s.items() if format in INT8_FORMATS), bf16)
    return Machine(
        name=f"this machine ({ceilings.isa})",
        node_cores=[len(node.cpus) for node in topology.nodes],
        node_memory_gib=min(node.free_bytes for node in topology.nodes) / GIB,
        node_read_gb_s=ceilings.read_bytes_s / 1e9,
        core_gflop_s={"bf16": bf16 / ceilings.threads / 1e9, "int8": int8 / ceilings.threads / 1e9},
        link_gb_s=ceilings.read_bytes_s / 1e9,
        meeting_us=_MEETING_BARRIERS * barrier_us,
        barrier_us=barrier_us,
    )
