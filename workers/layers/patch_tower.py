"""The embedder of images of the unified Gemma 4, which projects large patches and has no blocks.

The source is transformers 5.24, models/gemma4_unified/modeling_gemma4_unified.py. Patches are in the order of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from numaserve.workers.layers.grid_tower import TAPS
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.norm import LayerNorm
from numaserve.workers.layers.parameters import MatrixParameter, Order, Parameter, Part, Source, VectorParameter, vector
from numaserve.workers.layers.pooled_tower import AXES, PlacedEmbedding, PlacedTower
from numaserve.workers.layers.vision import FEATURES, PATCHES

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Residual, Tensor
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class NormedEmbedding(PlacedEmbedding):
    """A linear map of the norm of the pixels of each patch. A row for each of its coordinates is added to the norm of
    that, and the sum has a norm too.

    The checkpoint has the table for columns and the one for rows round-robin, and the channels of a pixel next to each
    other. Ranks do not divide the tables: these are added to what the ranks have summed.
    """

    norms: tuple[LayerNorm, LayerNorm, LayerNorm] = field(kw_only=True)  # of pixels, of the map and of the sum

    @cached_property
    def bias(self) -> VectorParameter | None:
        """The bias of the map, whole on every rank and added to the sum over the ranks."""
        return vector(self._source.bias)

    @cached_property
    def rows(self) -> MatrixParameter:
        """The rows of both tables, whole on every rank, bf16 always."""
        table = self.positions
        source = Source(table.module, (table.count, table.hidden), table.gguf, quantizable=False, bare=True)
        rounds = self.places if self.channels_last else 1
        return MatrixParameter((Part(source, Order(table.count, rounds=rounds)),), rule="bf16")

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.weight, self.bias, self.rows)

    @property
    def children(self) -> list[Layer]:
        """See `Layer`."""
        return [*self.norms]

    def in_gguf(self, pairs: bool, tensors: Collection[str]) -> Self:
        """See `Layer`. GGUF files have a table after the other, and a channel after the other."""
        first, of_map, of_sum = self.norms
        return replace(self, channels_last=False, norms=(replace(first, rounds=1), of_map, of_sum))

    def forward(self, b: ProgramBuilder, part: RankPart, pixels: Tensor) -> Residual:
        """The embeddings of patches, whole on every rank: fp32 [patches, hidden]. `pixels` is fp32 [patches, values of
        a patch]."""
        of_pixels, of_map, of_sum = self.norms
        x = b.columns(of_pixels.forward(b, part, pixels), part.along(self.columns))
        residual = b.summed(b.linear_partial(x, part.matrix(self.weight)), bias=part.vector(self.bias))
        of_map.apply(b, part, residual)
        b.add_taps(residual, part.matrix(self.rows), name=TAPS, taps=AXES)
        of_sum.apply(b, part, residual)
        return residual

    @cached_property
    def _source(self) -> Source:
        source = super()._source
        # GGUF files have a matrix of the same columns as the convolution of other models.
        return source if self.channels_last else replace(source, kernel=())


@dataclass(frozen=True)
class PatchTower(PlacedTower):
    """A tower without blocks. A patch becomes a feature."""

    embedding: NormedEmbedding

    def forward(self, b: ProgramBuilder, part: RankPart) -> None:
        """See `Tower`."""
        residual = self.embedding.forward(b, part, b.given(PATCHES, self.embedding.pixels))
        b.keep(FEATURES, self.pooler.forward(b, part, residual, self.factor))

    def scratch_columns(self, part: RankPart) -> int:
        """See `Layer`: pixels in fp32 and bf16, and norms and features in both."""
        return 2 * self.embedding.pixels + 3 * self.hidden + 2 * self.pooler.outputs
