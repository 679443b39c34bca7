"""Rates of a host of two nodes, as `numaserve doctor` measures them."""

from numaserve.workers.interface.protocol import Ceilings
from numaserve.workers.planning.doctor.rates import HostRates


def ceilings(threads: int, read_gb_s: float, core_gflop_s: float = 4000) -> Ceilings:
    flops = threads * core_gflop_s * 1e9
    return Ceilings("amx", threads, read_gb_s * 1e9, {"bf16": flops, "int8": 2 * flops})


RATES = HostRates(
    nodes=[0, 1],
    ceilings=[ceilings(4, 101), ceilings(3, 97)],
    core_read_gb_s=[12.0, 11.5],
    remote_gb_s=[[None, 52.0], [49.0, None]],
    barrier_us=[0.9, 1.1],
    meeting_us=1.9,
    same_node_ns=[60.0, 80.0, 130.0],
    other_node_ns=[200.0, 240.0],
    refusal="",
)
