"""The division of a model among ranks: computed once, and passed to all code that needs it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from math import prod

from numaserve.workers.interface.settings import ActivationDtype, ModelSettings
from numaserve.workers.layers.axes import Axis
from numaserve.workers.layers.formats import StoredKinds, cut_of, format_of, kinds_of
from numaserve.workers.layers.packed_rows import PackedRows, below, dealt
from numaserve.workers.layers.parameters import (
    Declaring,
    MatrixParameter,
    Parameter,
    Part,
    Rows,
    Split,
    VectorParameter,
    in_groups,
)
from numaserve.workers.layers.stored import StoredMatrices
from numaserve.workers.program.handles import (
    INTEGER_GROUPS,
    MATRIX_PAD,
    TILE_COLUMNS,
    Adapters,
    Matrix,
    MatrixFormat,
    Rope,
    Vector,
    matrix_bytes,
    round_up,
)
from numaserve.workers.program.rope import RopeConfig


@dataclass(frozen=True, eq=False)
class Partition:
    """The ranges of every axis for all ranks; `shares` are their cores.

    `stored` are the quantized matrices of the checkpoint, and `adapted` those that low-rank adapters update.
    """

    model: Declaring
    shares: tuple[int, ...]
    settings: ModelSettings
    stored: StoredMatrices
    adapted: frozenset[MatrixParameter] = frozenset()
    _ranges: dict[Axis, list[range]] = field(default_factory=dict)
    _kinds: dict[MatrixParameter, StoredKinds] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.shares)

    def ranges(self, axis: Axis) -> list[range]:
        """The part of each rank."""
        found = self._ranges.get(axis)
        if found is None:
            found = self._ranges[axis] = axis.divide(
                self.shares, cut=self._cut(axis), expert_parallel=self.settings.expert_parallel
            )
        return found

    def bounds(self, axis: Axis) -> tuple[int, ...]:
        """Return the world size + 1 boundaries of the parts of an axis whose units belong to one rank each."""
        return tuple(accumulate(map(len, self.ranges(axis)), initial=0))

    @functools.cached_property
    def ranks(self) -> list[RankPart]:
        """The part of each rank."""
        return [RankPart(self, rank) for rank in range(len(self.shares))]

    def weight_formats(self) -> list[str]:
        """The formats in which ranks keep weights, the one with the most bytes first."""
        total: Counter[str] = Counter()
        for rank in self.ranks:
            total.update(rank.bytes_by_format())
        return [name for name, _ in total.most_common()]

    def multiplied_by(self) -> dict[ActivationDtype, list[str]]:
        """Return the formats of weights in groups of integers on any rank, by the activations that multiply them."""
        made = {rank.format(each) for rank in self.ranks for each in rank.distinct()}
        pairs = sorted({(each.activations, each.format) for each in made if each.format in INTEGER_GROUPS})
        return {by: [format for _, format in found] for by, found in groupby(pairs, lambda pair: pair[0])}

    def _cut(self, axis: Axis) -> int:
        """The unit at whose multiples matrices with columns along `axis` are best divided."""
        along = self._columns_along.get(axis, [])
        return cut_of((kind for each in along for kind in self.stored_kinds(each)), axis.count, self.world_size)

    def stored_kinds(self, parameter: MatrixParameter) -> StoredKinds:
        """The ways in which the checkpoint has the sources of a matrix."""
        found = self._kinds.get(parameter)
        if found is None:
            found = self._kinds[parameter] = kinds_of(parameter, self.stored)
        return found

    @functools.cached_property
    def _columns_along(self) -> Mapping[Axis, list[MatrixParameter]]:
        """The matrices whose columns are divided, by axis."""
        found: dict[Axis, list[MatrixParameter]] = {}
        for each in self.model.parameters():
            if isinstance(each, MatrixParameter) and each.columns is not None:
                found.setdefault(each.columns.axis, []).append(each)
        return found


@dataclass(frozen=True, eq=False)
class RankPart:
    """One rank's part of a model: the sizes and formats of its weights, which operations refer to.

    Raises `OperatorError` where a checkpoint is wanted in a format that it cannot be had in.
    """

    partition: Partition
    rank: int
    _matrices: dict[MatrixParameter, tuple[Matrix, ...]] = field(default_factory=dict)
    _vectors: dict[VectorParameter, Vector | None] = field(default_factory=dict)
    _formats: dict[MatrixParameter, MatrixFormat] = field(default_factory=dict)

    def along(self, axis: Axis) -> range:
        """Its part of an axis."""
        return self.partition.ranges(axis)[self.rank]

    def own(self, axis: Axis) -> range:
        """Its part of an axis without the units that a lower rank has too."""
        mine = self.along(axis)
        lower = max((each.stop for each in self.partition.ranges(axis)[: self.rank]), default=0)
        return range(max(mine.start, lower), mine.stop)

    def units(self, parameter: Parameter) -> Sequence[int]:
        """The units that a declaration stands for here; one without number where it stands for itself."""
        return (0,) if parameter.each is None else self.along(parameter.each)

    def rows(self, part: Part) -> Rows:
        """The rows of the source that it has, in the kernels' order."""
        rows = part.order.rows()
        chosen = self._chosen(part)
        return rows if chosen is None else rows[chosen.start * part.width : chosen.stop * part.width]

    def columns(self, parameter: MatrixParameter) -> range:
        """The columns of the sources that it has; where they lie round-robin, those of the same units in order."""
        split = parameter.columns
        if split is None:
            return range(parameter.parts[0].source.shape[1])
        chosen = self.along(split.axis)
        return range(chosen.start * split.width, chosen.stop * split.width)

    def gathered(self, split: Split | None) -> Rows | None:
        """The units of columns to gather, in the kernels' order; None where they are one range."""
        if split is None or split.rounds == 1:
            return None
        chosen = self.along(split.axis)
        return in_groups(split.axis.count, split.rounds)[chosen.start : chosen.stop]

    def shape(self, parameter: MatrixParameter) -> tuple[int, int]:
        """[out features, in features] of each of its matrices."""
        heights = [self._height(part) for part in parameter.parts]
        if parameter.layout == "turned":
            part = parameter.parts[0]
            return heights[0] // part.order.taken * part.source.shape[1], part.order.taken
        # Both halves fill whole tiles, so that the padded columns of the product are written, as zeros.
        rows = 2 * round_up(heights[0], TILE_COLUMNS) if parameter.layout == "panels" else sum(heights)
        return rows, len(self.columns(parameter))

    def format(self, parameter: MatrixParameter) -> MatrixFormat:
        """The format of its matrices."""
        found = self._formats.get(parameter)
        if found is None:
            kinds, formats = self.partition.stored_kinds(parameter), self.partition.settings.formats
            first = self._first_column(parameter)
            found = format_of(parameter, kinds, formats, first, is_quantized=bool(self.partition.stored))
            self._formats[parameter] = found
        return found

    def distinct(self, layer: Declaring | None = None) -> Iterator[MatrixParameter]:
        """The declarations of all matrices that the rank holds, or of those in a layer, each memory once, in the order
        of the layers."""
        for each in (layer or self.partition.model).parameters():
            if isinstance(each, MatrixParameter) and self._tied(each) is None:
                yield each

    def weight_bytes(self, layer: Declaring | None = None) -> int:
        """Memory of all its matrices, or of those in a layer; vectors, a few kB a layer, are left out."""
        return self.bytes_by_format(layer).total()

    def bytes_by_format(self, layer: Declaring | None = None) -> Counter[str]:
        """Memory of its matrices, or of those in a layer, by the format that they are kept in."""
        found: Counter[str] = Counter()
        for each in self.distinct(layer):
            made = self.format(each)
            found[made.format] += len(self.units(each)) * matrix_bytes(*self.shape(each), made)
        return found

    def matrices(self, parameter: MatrixParameter) -> tuple[Matrix, ...]:
        """The matrices that a declaration stands for; always the same objects."""
        parameter = self._tied(parameter) or parameter
        found = self._matrices.get(parameter)
        if found is None:
            shape, made = self.shape(parameter), self.format(parameter)
            adapters = self._adapters(parameter)
            units = self.units(parameter)
            found = self._matrices[parameter] = tuple(Matrix(*shape, made, adapters) for _ in units)
        return found

    def matrix(self, parameter: MatrixParameter) -> Matrix:
        """The matrix that a declaration without `each` stands for."""
        (found,) = self.matrices(parameter)
        return found

    def vector(self, parameter: VectorParameter | None) -> Vector | None:
        """The vector that a declaration stands for; None where it has no part of it."""
        if parameter is None:
            return None
        if parameter not in self._vectors:
            self._vectors[parameter] = Vector(self._vector_size(parameter)) if self.has(parameter) else None
        return self._vectors[parameter]

    def whole(self, parameter: VectorParameter) -> Vector:
        """A vector that every rank has."""
        found = self.vector(parameter)
        assert found is not None  # noqa: S101  it is not of one rank alone
        return found

    def rope(self, config: RopeConfig) -> Rope:
        """The tables of a rotary embedding."""
        return Rope(config)

    def adapters(self) -> Iterator[tuple[MatrixParameter, Adapters]]:
        """The matrices that adapters update here, with the memory of these, in the order of the layers."""
        for each in self.distinct():
            adapters = self.matrices(each)[0].adapters if each in self.partition.adapted else None
            if adapters is not None:
                yield each, adapters

    def adapter_bytes(self) -> int:
        """Memory of all adapters."""
        return sum(adapters.nbytes for _, adapters in self.adapters())

    def packed_rows(self, parameter: MatrixParameter) -> PackedRows:
        """The origin of each row of a packed matrix that is not turned."""
        rows = [self.rows(part) for part in parameter.parts]
        if parameter.layout == "panels":
            return dealt(rows)
        return below(rows)

    def _adapters(self, parameter: MatrixParameter) -> Adapters | None:
        """The memory of adapters of a matrix; None where they do not update it, or the rank has nothing of it."""
        if parameter not in self.partition.adapted or len(self.columns(parameter)) == 0:
            return None
        origin, settings = self.packed_rows(parameter), self.partition.settings
        panels = origin.parts_in_panels(parameter.source_numbers)
        if not any(panels):
            return None
        parts, columns = len(set(parameter.sources)), len(self.columns(parameter))
        return Adapters(settings.max_loras, settings.max_lora_rank, parts, columns, panels)

    def _tied(self, parameter: MatrixParameter) -> MatrixParameter | None:
        """The declaration whose matrices it has, where it has none of its own."""
        other = parameter.tied_to
        return other if other is not None and self.format(parameter) == self.format(other) else None

    def has(self, parameter: VectorParameter) -> bool:
        """Whether it has a part of a vector, which may be an empty one."""
        only = parameter.only_first_of
        return (only is None or 0 in self.along(only)) and len(self.units(parameter)) > 0

    def _first_column(self, parameter: MatrixParameter) -> int:
        """The column at which groups must begin, of the rank or of its second unit."""
        split = parameter.columns
        if split is None:
            return 0
        return self.columns(parameter).start if split.rounds == 1 else split.width

    def _vector_size(self, parameter: VectorParameter) -> int:
        heights = [self._height(part) * prod(part.source.shape[1:]) for part in parameter.parts]
        size = 2 * round_up(heights[0], TILE_COLUMNS) if parameter.layout == "panels" else sum(heights)
        return size if parameter.each is None else len(self.units(parameter)) * round_up(size, MATRIX_PAD)

    def _height(self, part: Part) -> int:
        chosen = self._chosen(part)
        return part.order.units * part.order.taken if chosen is None else len(chosen) * part.width

    def _chosen(self, part: Part) -> range | None:
        """The units of its axis, counted from its own first one."""
        if part.axis is None:
            return None
        mine, count = self.along(part.axis), part.order.units * part.order.taken // part.width
        return range(*(min(max(end - part.at, 0), count) for end in (mine.start, mine.stop)))
