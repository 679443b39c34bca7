"""Native kernels: one source, three instruction sets, one native call per step."""

from numaserve.kernels._native import (
    PackedMatrix,
    Program,
    RopeTable,
    Team,
    Vector,
    available_isas,
    isa,
)

__all__ = ["PackedMatrix", "Program", "RopeTable", "Team", "Vector", "available_isas", "isa"]
