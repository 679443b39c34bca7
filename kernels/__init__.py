"""Native kernels: one source, three instruction sets, one native call per step."""

from numaserve.kernels._native import (
    PackedMatrix,
    Program,
    RopeTable,
    Team,
    Vector,
    available_isas,
    barrier_ns,
    isa,
    peak_flops,
    read_bandwidth,
)

__all__ = [
    "PackedMatrix",
    "Program",
    "RopeTable",
    "Team",
    "Vector",
    "available_isas",
    "barrier_ns",
    "isa",
    "peak_flops",
    "read_bandwidth",
]
