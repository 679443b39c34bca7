"""Native kernels: one source, three instruction sets, one native call per step."""

from numaserve.kernels._native import (
    CHECKSUM_UNIT,
    Counter,
    PackedMatrix,
    Program,
    RopeTable,
    Team,
    Vector,
    available_isas,
    barrier_ns,
    checksum,
    evict,
    isa,
    peak_flops,
    read_bandwidth,
    read_packed,
    read_seconds,
)

__all__ = [
    "CHECKSUM_UNIT",
    "Counter",
    "PackedMatrix",
    "Program",
    "RopeTable",
    "Team",
    "Vector",
    "available_isas",
    "barrier_ns",
    "checksum",
    "evict",
    "isa",
    "peak_flops",
    "read_bandwidth",
    "read_packed",
    "read_seconds",
]
