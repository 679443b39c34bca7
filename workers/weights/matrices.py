"""Makes a rank's matrices and packs them from a checkpoint's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numaserve.kernels import PackedMatrix
from numaserve.workers.models.family import MlpNames
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.weights.formats import MatrixFormat, MlpFormats
from numaserve.workers.weights.packing import Packer, Place, Rows
from numaserve.workers.weights.sharding import TILE_COLUMNS, round_up
from numaserve.workers.weights.tensors import Shape
from numaserve.workers.weights.weights import DenseMlp


def packed_matrix(n: int, k: int, made: MatrixFormat) -> PackedMatrix:
    """A matrix of zeros."""
    return PackedMatrix(n, k, made.format, made.group, made.offsets)


def gate_up_rows(names: MlpNames, columns: range, height: int) -> tuple[Rows, Rows]:
    """The rows of gate and of up, in tensors of `height` rows, that make the `columns` of a gated MLP."""
    gate = np.arange(columns.start, columns.stop, dtype=np.int32)
    if names.up != names.gate:
        return gate, gate
    return (2 * gate, 2 * gate + 1) if names.interleaved else (gate, gate + np.int32(height // 2))


@dataclass
class MatrixMaker:
    """Makes matrices one after the other; `report` gets the bytes of those that are packed.

    `at` is a layer, with a dot, and `name` a module within it. Raises `OperatorError` for tensors that are damaged.
    """

    config: ModelConfig
    prefix: str  # of tensors' names in the checkpoint
    shapes: Mapping[str, Shape]  # of a layer's tensors
    packer: Packer | None  # None: matrices are made, and filled by others
    report: Callable[[int], None]
    make: Callable[[int, int, MatrixFormat], PackedMatrix] = packed_matrix
    done: int = 0

    def rows(self, at: str, parts: list[tuple[str, Rows]], made: MatrixFormat) -> PackedMatrix:
        """Rows of some tensors that read the same, below each other."""
        columns = self.shapes[f"{parts[0][0]}.weight"][1]
        matrix = self.make(sum(len(rows) for _, rows in parts), columns, made)
        row = 0
        for name, rows in parts:
            self._pack(matrix, at, name, rows, Place(dst_row=row))
            row += len(rows)
        return self._packed(matrix)

    def columns(self, at: str, name: str, columns: range, made: MatrixFormat) -> PackedMatrix:
        """All rows of a tensor that writes to the residual stream, and of its columns those."""
        hidden = self.config.hidden_size
        matrix = self.make(hidden, len(columns), made)
        self._pack(matrix, at, name, np.arange(hidden, dtype=np.int32), Place(first_col=columns.start))
        return self._packed(matrix)

    def mlp(self, at: str, names: MlpNames, columns: range, made: MlpFormats) -> DenseMlp:
        """A gated MLP, of whose columns the rank has some."""
        # Both halves fill whole tiles, so that the padded columns of the product are written, as zeros.
        gate_up = self.make(2 * round_up(len(columns), TILE_COLUMNS), self.config.hidden_size, made.gate_up)
        gate, up = gate_up_rows(names, columns, self.shapes[f"{names.gate}.weight"][0])
        for offset, (name, rows) in enumerate(((names.gate, gate), (names.up, up))):
            self._pack(gate_up, at, name, rows, Place(panel_stride=2, panel_offset=offset))
        return DenseMlp(self._packed(gate_up), self.columns(at, names.down, columns, made.down))

    def turned(self, at: str, name: str, starts: Sequence[int], height: int, made: MatrixFormat) -> PackedMatrix:
        """The transposes of blocks of `height` rows, below each other."""
        rows, columns = self.shapes[f"{name}.weight"]
        matrix = self.make(len(starts) * columns, height, made)
        if self.packer is not None:
            stored = self.config.stored.get(at + name)
            blocks = [range(start, start + height) for start in starts]
            self.packer.pack_turned(matrix, self.prefix + at + name, blocks, stored=stored, shape=(rows, columns))
        return self._packed(matrix)

    def vocabulary(self, module: str, tensor: str, rows: range, made: MatrixFormat) -> PackedMatrix:
        """Rows of the embedding or of the output head; `tensor` is what the checkpoint calls the `module`."""
        config = self.config
        matrix = self.make(len(rows), config.hidden_size, made)
        if self.packer is not None:
            chosen, shape = np.arange(rows.start, rows.stop, dtype=np.int32), (config.vocab_size, config.hidden_size)
            self.packer.pack(matrix, tensor, chosen, Place(), stored=config.stored.get(module), shape=shape)
        return self._packed(matrix)

    def _pack(self, matrix: PackedMatrix, at: str, name: str, rows: Rows, place: Place) -> None:
        if self.packer is None:
            return
        stored, shape = self.config.stored.get(at + name), self.shapes[f"{name}.weight"]
        self.packer.pack(matrix, self.prefix + at + name, rows, place, stored=stored, shape=(shape[0], shape[1]))

    def _packed(self, matrix: PackedMatrix) -> PackedMatrix:
        if self.packer is not None:
            self.done += matrix.nbytes
            self.report(self.done)
        return matrix
