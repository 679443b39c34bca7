"""The vision tower of Gemma 4, for images of any number of rows and columns of squares of patches.

The source is transformers 5.24, models/gemma4/modeling_gemma4.py. Patches are in the order of squares that become one
feature, and within a square in the order of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from numaserve.workers.layers.any_size_tower import AnySizeTower
from numaserve.workers.layers.axes import Axis, Columns
from numaserve.workers.layers.grid_tower import ROTARY, TAPS
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.parameters import (
    MatrixParameter,
    Order,
    Parameter,
    Part,
    Source,
    Split,
    VectorParameter,
    vector,
    whole,
)
from numaserve.workers.layers.position_embedding import Table
from numaserve.workers.layers.vision import CHANNELS, FEATURES, PATCHES

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Residual
    from numaserve.workers.program.recording.builder import ProgramBuilder
    from numaserve.workers.program.rope import RopeConfig

AXES = 2  # of an image, each of which has a table of positions


@dataclass(frozen=True)
class PlacedEmbedding(Layer):
    """A linear map of the pixels of each patch, and a row for each of its coordinates. The table for columns lies above
    the one for rows."""

    module: str
    patch: int  # pixels of a side
    positions: Table
    gguf: str = ""
    channels_last: bool = True  # in the checkpoint

    @property
    def pixels(self) -> int:
        """Values of a patch."""
        return CHANNELS * self.patch**2

    @property
    def places(self) -> int:
        """The places of an axis."""
        return self.positions.count // AXES

    @cached_property
    def columns(self) -> Axis:
        """The values of a patch, which ranks divide."""
        return Columns("pixels", self.pixels)

    @cached_property
    def weight(self) -> MatrixParameter:
        """The map, [hidden, the rank's values], bf16 always."""
        return MatrixParameter((whole(self._source),), Split(self.columns), rule="bf16")

    @cached_property
    def rows(self) -> MatrixParameter:
        """The rows of both tables, bf16 always."""
        table = self.positions
        source = Source(table.module, (table.count, table.hidden), table.gguf, quantizable=False, bare=True)
        return MatrixParameter((Part(source, Order(table.count), table.axis),), rule="bf16")

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.weight, self.rows)

    @property
    def children(self) -> list[Layer]:
        """See `Layer`: the table's rows are declared here."""
        return []

    def in_gguf(self, pairs: bool, tensors: Collection[str]) -> Self:
        """See `Layer`. In GGUF files the map is a convolution."""
        return replace(self, channels_last=False)

    def forward(self, b: ProgramBuilder, part: RankPart, pixels: Operand) -> Residual:
        """The embeddings of patches, whole on every rank: fp32 [patches, hidden]. `pixels` is bf16 [patches, values of
        a patch]."""
        partial = b.linear_partial(b.columns(pixels, part.along(self.columns)), part.matrix(self.weight))
        first = part.along(self.positions.axis).start
        b.add_taps(partial, part.matrix(self.rows), name=TAPS, first_row=first, taps=AXES)
        return b.summed(partial)

    @cached_property
    def _source(self) -> Source:
        kernel, shape = (CHANNELS, self.patch, self.patch), (self.positions.hidden, self.pixels)
        return Source(self.module, shape, self.gguf, quantizable=False, kernel=kernel, channels_last=self.channels_last)


@dataclass(frozen=True)
class Pooler(Layer):
    """The mean of the patches of a square, times the square root of its columns, maybe standardised, and the projection
    of its norm to `outputs` columns of the decoder's stream. The norm has no weight."""

    hidden: int
    outputs: int
    eps: float
    standardized: bool

    @cached_property
    def columns(self) -> Axis:
        """The columns of a square, which ranks divide."""
        return Columns("pooled", self.hidden)

    @cached_property
    def weight(self) -> MatrixParameter:
        """The projection, [outputs, the rank's columns]."""
        source = Source("embed_vision.embedding_projection", (self.outputs, self.hidden), "mm.input_projection")
        return MatrixParameter((whole(source),), Split(self.columns), rule="stored")

    @cached_property
    def shift(self) -> VectorParameter | None:
        """The values that are subtracted of a mean."""
        return self._vector("std_bias", self.hidden**-0.5)

    @cached_property
    def scale(self) -> VectorParameter | None:
        """The factors of columns after that."""
        return self._vector("std_scale", self.hidden**0.5)

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.shift, self.scale, self.weight)

    def in_gguf(self, pairs: bool, tensors: Collection[str]) -> Self:
        """See `Layer`."""
        return self

    def forward(self, b: ProgramBuilder, part: RankPart, residual: Residual, factor: int) -> Operand:
        """The features, whole on every rank: bf16 [squares, outputs]."""
        # Without shift and scale the factor of the columns only changes the norm's eps.
        eps = self.eps if self.standardized else self.eps / self.hidden
        shift, scale = part.vector(self.shift), part.vector(self.scale)
        mean = b.mean_rows(residual, side=factor, factor=factor, many=True, shift=shift, weight=scale, eps=eps)
        x = b.columns(b.rounded(mean), part.along(self.columns))
        return b.rounded(b.summed(b.linear_partial(x, part.matrix(self.weight))))

    def _vector(self, name: str, factor: float) -> VectorParameter | None:
        if not self.standardized:
            return None
        made = vector(Source(f"vision_tower.{name}", (self.hidden,), f"v.{name}"))
        return None if made is None else replace(made, factor=factor)


@dataclass(frozen=True)
class PlacedTower(AnySizeTower):
    """A tower whose patches have positions by column and row, and whose features are means of squares."""

    embedding: PlacedEmbedding
    pooler: Pooler

    @property
    def children(self) -> list[Layer]:
        """See `Layer`: in the order of the forward pass."""
        return [self.embedding, *self.blocks, self.pooler]

    @property
    def patch(self) -> int:
        """See `Tower`."""
        return self.embedding.patch

    @property
    def hidden(self) -> int:
        """See `Tower`."""
        return self.embedding.positions.hidden

    @property
    def side(self) -> int:
        """See `AnySizeTower`."""
        return self.embedding.places

    def message_columns(self, part: RankPart) -> int:
        """See `Layer`: its own residual stream is not that of the decoder."""
        return max(super().message_columns(part), self.hidden, self.pooler.outputs)


@dataclass(frozen=True)
class PooledTower(PlacedTower):
    """A tower whose blocks rotate patches by their columns and rows."""

    rope: RopeConfig  # of a coordinate, for half of the pairs of a head

    @property
    def rotations(self) -> tuple[RopeConfig, ...]:
        """See `AnySizeTower`."""
        return self.rope, self.rope

    @property
    def columns_first(self) -> bool:
        """See `AnySizeTower`."""
        return True

    def forward(self, b: ProgramBuilder, part: RankPart) -> None:
        """See `Tower`."""
        residual = self.embedding.forward(b, part, b.rounded(b.given(PATCHES, self.embedding.pixels)))
        (place,) = self.layer_caches(part).places
        b.rotate_as_given(part.rope(self.rope), ROTARY, self.rope.rotary_dim)
        for block in self.blocks:
            block.forward(b, part, residual, place)
        b.keep(FEATURES, self.pooler.forward(b, part, residual, self.factor))

    def scratch_columns(self, part: RankPart) -> int:
        """See `Layer`. Pixels are there in fp32 and bf16, and the residual stream next to clipped sums."""
        most = max(block.scratch_columns(part) for block in self.blocks)
        return most + 2 * self.embedding.pixels + 4 * self.hidden + 2 * self.pooler.outputs
