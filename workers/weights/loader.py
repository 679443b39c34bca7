"""Packs one rank's part of a checkpoint. Only the rank's own rows and columns of the mapped file are ever touched."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numaserve.kernels import AdapterWeights, PackedMatrix, Team, Vector
from numaserve.workers.layers.names import TensorNames
from numaserve.workers.layers.packed_rows import in_panels, padded
from numaserve.workers.layers.parameters import MatrixParameter, Part, VectorParameter
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.handles import MATRIX_PAD, Matrix
from numaserve.workers.weights.packing import Gather, Packer, Place
from numaserve.workers.weights.source import Floats, TensorSource, as_float32
from numaserve.workers.weights.tensors import check_tensors
from numaserve.workers.weights.weights import Weights


def load_weights(
    source: TensorSource,
    config: ModelConfig,
    part: RankPart,
    team: Team,
    report: Callable[[int], None] = lambda done: None,
    *,
    positions: int,
    stored: bool = False,
) -> Weights:
    """Pack the rank's part of a checkpoint on the team's threads.

    `report` gets the bytes packed so far, `part.weight_bytes()` of them in the end; `positions` is the longest context
    served. With `stored` matrices are made but not filled, and nothing is reported: their bytes are stored elsewhere.
    Raises `OperatorError` when the checkpoint does not fit the configuration.
    """
    check_tensors(source, config)
    names = config.names_in(source.names())
    packer = None if stored else Packer(source, team)
    return _Loader(source, config, part, names, packer, report).load(positions)


@dataclass
class _Loader:
    source: TensorSource
    config: ModelConfig
    part: RankPart
    names: TensorNames
    packer: Packer | None  # None: matrices are made, and the caller fills them
    report: Callable[[int], None]
    done: int = 0

    def load(self, positions: int) -> Weights:
        weights = Weights(positions)
        for parameter, unit, matrix in self._matrices():
            weights.add_matrix(matrix, self._packed(parameter, unit, matrix))
        for each in self.config.decoder.parameters():
            if isinstance(each, VectorParameter) and (vector := self.part.vector(each)) is not None:
                weights.add_vector(vector, Vector(self._values(each)))
        for _, adapters in self.part.adapters():
            sizes = adapters.places, adapters.rank, adapters.parts, adapters.k
            weights.add_adapters(adapters, AdapterWeights(*sizes, adapters.panels))
        return weights

    def _matrices(self) -> Iterator[tuple[MatrixParameter, int, Matrix]]:
        """Yield all matrices with their units; the matrices of a unit follow each other, as in files."""
        for _, group in groupby(self.part.distinct(), lambda each: each.each or id(each)):
            together = list(group)
            handles = [self.part.matrices(each) for each in together]
            for index, unit in enumerate(self.part.units(together[0])):
                for parameter, matrices in zip(together, handles, strict=True):
                    yield parameter, unit, matrices[index]

    def _packed(self, parameter: MatrixParameter, unit: int, matrix: Matrix) -> PackedMatrix:
        packed = PackedMatrix(matrix.n, matrix.k, matrix.made.format, matrix.made.group, matrix.made.offsets)
        if self.packer is None:
            return packed
        pack = self._pack_turned if parameter.layout == "turned" else self._pack_rows
        pack(self.packer, parameter, unit, packed)
        self.done += packed.nbytes
        self.report(self.done)
        return packed

    def _pack_rows(self, packer: Packer, parameter: MatrixParameter, unit: int, packed: PackedMatrix) -> None:
        gather = Gather.for_rank(self.part, parameter.columns)
        first_col, row = 0 if gather else self.part.columns(parameter).start, 0
        in_panels = parameter.layout == "panels"
        for index, part in enumerate(parameter.parts):
            rows = self.part.rows(part)
            place = Place(0, first_col, len(parameter.parts), index) if in_panels else Place(row, first_col)
            source = part.source
            stored = self.config.stored.get(source.named(unit))
            name, shape = self.names.of(source, unit), _matrix_shape(part)
            packer.pack(packed, name, rows, place, stored=stored, shape=shape, gather=gather)
            row += len(rows)

    def _pack_turned(self, packer: Packer, parameter: MatrixParameter, unit: int, packed: PackedMatrix) -> None:
        (part,) = parameter.parts
        rows, height = self.part.rows(part), part.order.taken
        blocks = [range(first, first + height) for first in rows[::height].tolist()]
        stored = self.config.stored.get(part.source.named(unit))
        name = self.names.of(part.source, unit)
        packer.pack_turned(packed, name, blocks, stored=stored, shape=_matrix_shape(part))

    def _values(self, parameter: VectorParameter) -> Floats:
        if parameter.each is None:
            return self._piece(parameter, 0)
        pieces = (self._piece(parameter, unit) for unit in self.part.units(parameter))
        return np.concatenate([padded(piece, MATRIX_PAD, 0) for piece in pieces])

    def _piece(self, parameter: VectorParameter, unit: int) -> Floats:
        parts = [self._part_values(part, unit) for part in parameter.parts]
        if parameter.layout == "panels":
            values = in_panels(parts, 0)
        else:
            values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if parameter.is_log:
            values = np.exp(values)
        if parameter.added:
            values = values + np.float32(parameter.added)
        return values * np.float32(parameter.factor) if parameter.factor != 1.0 else values

    def _part_values(self, part: Part, unit: int) -> Floats:
        values = as_float32(self.source.tensor(self.names.of(part.source, unit)))
        return values.reshape(part.source.shape[0], -1)[self.part.rows(part)].reshape(-1)


def _matrix_shape(part: Part) -> tuple[int, int]:
    rows, columns = part.source.shape
    return rows, columns
