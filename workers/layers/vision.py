"""The tower of a model that sees: makes features of tiles of images, with a Program of its own.

A tile is a sequence of patches, which see each other. The Program is given the pixels of the patches and keeps the
features, which take the places of tokens' embeddings in the decoder. Tiles of one size are here; see `grid_tower` for
those of any size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from numaserve.workers.layers.axes import Axis, Columns
from numaserve.workers.layers.caches import Cache, NumberedCaches, numbered
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.parameters import (
    MatrixParameter,
    Parameter,
    Source,
    Split,
    VectorParameter,
    vector,
    whole,
)
from numaserve.workers.layers.position_embedding import Table
from numaserve.workers.program.setup import RankShape

if TYPE_CHECKING:
    from numaserve.workers.layers.block import Block
    from numaserve.workers.layers.norm import LayerNorm, Norm
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Residual
    from numaserve.workers.program.recording.builder import ProgramBuilder

PATCHES = "patches"  # the rows that the tower's Program is given
FEATURES = "features"  # the rows that it keeps, and that the decoder's Program reads
CHANNELS = 3


@dataclass(frozen=True)
class PatchEmbedding(Layer):
    """A linear map of the pixels of each patch, and a row for its position (Dosovitskiy et al., 2021), and maybe one of
    another table of positions."""

    module: str
    patch: int  # pixels of a side
    positions: Table
    gguf: str = ""
    more: Table | None = None
    biased: bool = True
    convolution: bool = True  # the checkpoint has the map as one

    @property
    def pixels(self) -> int:
        """Values of a patch."""
        return CHANNELS * self.patch**2

    @cached_property
    def columns(self) -> Axis:
        """The values of a patch, which ranks divide."""
        return Columns("pixels", self.pixels)

    @cached_property
    def weight(self) -> MatrixParameter:
        """The map, [hidden, the rank's values], bf16 always."""
        return MatrixParameter((whole(self._source),), Split(self.columns), rule="bf16")

    @cached_property
    def bias(self) -> VectorParameter | None:
        """The bias, whole on every rank and added to the sum over the ranks."""
        return vector(self._source.bias if self.biased else None)

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.weight, self.bias)

    def forward(self, b: ProgramBuilder, part: RankPart, pixels: Operand) -> Residual:
        """The embeddings of a tile's patches, whole on every rank: fp32 [patches, hidden]. `pixels` is bf16 [patches,
        values of a patch]."""
        partial = b.linear_partial(b.columns(pixels, part.along(self.columns)), part.matrix(self.weight))
        for table in (self.positions, self.more):
            if table is not None:
                first = part.along(table.axis).start - table.shift
                b.add_rows(partial, part.matrix(table.rows), index=table.index, first_row=first)
        return b.summed(partial, bias=part.vector(self.bias))

    @cached_property
    def _source(self) -> Source:
        kernel = (CHANNELS, self.patch, self.patch) if self.convolution else ()
        return Source(self.module, (self.positions.hidden, self.pixels), self.gguf, quantizable=False, kernel=kernel)


@dataclass(frozen=True)
class Connector(Layer):
    """The projection of a square of patches, which gives `inputs` values, to `outputs` columns of the decoder's
    stream."""

    module: str
    inputs: int
    outputs: int
    gguf: str = ""
    rounds: int = 1  # values of patches lie round-robin in the checkpoint, see `in_groups`

    @cached_property
    def columns(self) -> Axis:
        """The values of a square, which ranks divide."""
        return Columns("merged", self.inputs)

    @property
    def source(self) -> Source:
        """The tensor of the projection."""
        return Source(self.module, (self.outputs, self.inputs), self.gguf)

    @cached_property
    def weight(self) -> MatrixParameter:
        """The projection, [outputs, the rank's values]."""
        return MatrixParameter((whole(self.source),), Split(self.columns, rounds=self.rounds), rule="stored")

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield self.weight

    def scratch_columns(self, part: RankPart) -> int:
        """See `Layer`: sums in fp32 and bf16."""
        return 2 * self.outputs

    def squares(
        self, b: ProgramBuilder, part: RankPart, residual: Residual, norm: LayerNorm, tower: TileTower
    ) -> Operand:
        """The values of squares, bf16 [rows, inputs], of the stream of a `tower` before its last `norm`: patches side
        by side, the pixel shuffle of Idefics3 (Laurençon et al., 2024)."""
        return b.merge_rows(norm.forward(b, part, residual), side=tower.side, factor=tower.factor)

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand) -> Operand:
        """The features, whole on every rank: bf16 [rows, outputs]. `x` is bf16 [rows, inputs]."""
        partial = b.linear_partial(b.columns(x, part.along(self.columns)), part.matrix(self.weight))
        return b.rounded(b.summed(partial))


@dataclass(frozen=True)
class MeanSquares(Connector):
    """A projection of the mean of the patches of a square, which has a norm of its own. The checkpoint has the
    projection with in features first."""

    mean_norm: Norm = field(kw_only=True)

    @property
    def source(self) -> Source:
        """See `Connector`."""
        return replace(super().source, bare=True, turned=True)

    def squares(
        self, b: ProgramBuilder, part: RankPart, residual: Residual, norm: LayerNorm, tower: TileTower
    ) -> Operand:
        """See `Connector`."""
        norm.apply(b, part, residual)
        return self.mean_norm.forward(b, part, b.mean_rows(residual, side=tower.side, factor=tower.factor))


@dataclass(frozen=True)
class Tower(Layer, ABC):
    """A tower of any kind: `blocks` around a residual stream of patches. One feature is made of a square of `factor` x
    `factor` patches."""

    blocks: tuple[Block, ...]
    factor: int

    @property
    @abstractmethod
    def patch(self) -> int:
        """Pixels of a side of a patch."""

    @property
    @abstractmethod
    def patches(self) -> int:
        """Patches of a tile, the most if tiles differ."""

    @property
    @abstractmethod
    def hidden(self) -> int:
        """Columns of the tower's residual stream."""

    @property
    def features(self) -> int:
        """Rows of features of a tile, the most if tiles differ."""
        return self.patches // self.factor**2

    @property
    def deep(self) -> tuple[str, ...]:
        """The names of rows that are added to the decoder's stream after each of its first layers, where there are
        features of other images."""
        return ()

    def bounded(self, features: int) -> Self:
        """The same tower for tiles of at most `features`."""
        return self

    @property
    def keeps(self) -> tuple[Cache, ...]:
        """See `Layer`: nothing that outlives a tile."""
        return ()

    def layer_caches(self, part: RankPart) -> NumberedCaches:
        """The cache of its blocks: each of them is done with it when the next begins, so they share one. Without blocks
        there is none."""
        return numbered([block.attention.cache for block in self.blocks[:1]], part)

    def shape(self, part: RankPart) -> RankShape:
        """The sizes that its program is made for. Its only token is 0, which stands for any patch."""
        bounds = (0, *[1] * part.partition.world_size)
        return RankShape(self.hidden, bounds, self.layer_caches(part).caches)

    @abstractmethod
    def forward(self, b: ProgramBuilder, part: RankPart) -> None:
        """Append the forward pass of a tile, from pixels that are given to features that are kept."""

    @property
    def pairs_in_gguf(self) -> bool:
        """Whether rotated dimensions lie in pairs in GGUF files."""
        return False

    @property
    def plain(self) -> bool:
        """Whether no quantization of a folder is of the tower."""
        return False

    def in_gguf(self, pairs: bool, tensors: Collection[str]) -> Self:
        """See `Layer`. The dimensions of the decoder say nothing about those of the tower."""
        return super().in_gguf(self.pairs_in_gguf, tensors)


@dataclass(frozen=True)
class TileTower(Tower):
    """SigLIP (Zhai et al., 2023) and a connector, for tiles of one size."""

    tile: int  # pixels of a side
    embedding: PatchEmbedding
    norm: LayerNorm
    connector: Connector

    @property
    def children(self) -> list[Layer]:
        """See `Layer`: in the order of the forward pass."""
        return [self.embedding, *self.blocks, self.norm, self.connector]

    @property
    def side(self) -> int:
        """Patches in a row of a tile. Pixels of the last rows and columns may be left over."""
        return self.tile // self.embedding.patch

    @property
    def patch(self) -> int:
        """See `Tower`."""
        return self.embedding.patch

    @property
    def patches(self) -> int:
        """See `Tower`."""
        return self.side**2

    @property
    def hidden(self) -> int:
        """See `Tower`."""
        return self.embedding.positions.hidden

    def forward(self, b: ProgramBuilder, part: RankPart) -> None:
        """See `Tower`."""
        residual = self.embedding.forward(b, part, b.rounded(b.given(PATCHES, self.embedding.pixels)))
        (place,) = self.layer_caches(part).places
        for block in self.blocks:
            block.forward(b, part, residual, place)
        squares = self.connector.squares(b, part, residual, self.norm, self)
        b.keep(FEATURES, self.connector.forward(b, part, squares))

    def scratch_columns(self, part: RankPart) -> int:
        """The columns of the block that has most, of a patch's pixels in fp32 and bf16, and of a square of features."""
        most = max(block.scratch_columns(part) for block in self.blocks)
        return most + 2 * self.embedding.pixels + self.hidden + 2 * self.connector.outputs

    def message_columns(self, part: RankPart) -> int:
        """See `Layer`: its own residual stream is not that of the decoder."""
        return max(super().message_columns(part), self.hidden, self.connector.outputs)
