"""One rank's weights, packed for its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from numaserve.kernels import AdapterWeights, PackedMatrix, RopeTable
from numaserve.kernels import Vector as NativeVector
from numaserve.workers.program.handles import Adapters, Handle, Matrix, Rope, Vector
from numaserve.workers.program.rope import RopeConfig, rope_tables

Native = PackedMatrix | NativeVector | RopeTable | AdapterWeights


@dataclass
class Weights:
    """The native objects that the operations of a rank refer to. `positions` is the longest context served."""

    positions: int
    _native: dict[Handle, Native] = field(default_factory=dict)
    _matrices: list[PackedMatrix] = field(default_factory=list)

    @property
    def matrices(self) -> Sequence[PackedMatrix]:
        """All matrices, each once, in the order in which they are loaded."""
        return self._matrices

    def add_matrix(self, handle: Matrix, packed: PackedMatrix) -> None:
        """Assign a packed matrix to `handle`."""
        self._native[handle] = packed
        self._matrices.append(packed)

    def add_vector(self, handle: Vector, vector: NativeVector) -> None:
        """Assign a vector to `handle`."""
        self._native[handle] = vector

    def add_adapters(self, handle: Adapters, memory: AdapterWeights) -> None:
        """Assign memory for adapters to `handle`."""
        self._native[handle] = memory

    def borrow(self, handle: Matrix, lender: Weights) -> None:
        """Refer to a matrix of another model, which is not one of `matrices`."""
        self._native[handle] = lender.native(handle)

    def native(self, handle: Handle) -> Native:
        """Return the native object of a handle. Tables of rotary embeddings are made on first use."""
        found = self._native.get(handle)
        if found is None and isinstance(handle, Rope):
            found = self._native[handle] = _rope_table(handle.config, self.positions)
        if found is None:
            raise KeyError(handle)
        return found


def _rope_table(config: RopeConfig, positions: int) -> RopeTable:
    scale = config.query_scale
    factors = None if scale is None else scale.factors(positions)
    return RopeTable(*rope_tables(config, positions), factors, config.distance)
