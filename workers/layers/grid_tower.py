"""The vision tower of Qwen3-VL and Qwen3.5, whose images have any number of rows and columns of patches.

The source is transformers 5.24, models/qwen3_vl/modeling_qwen3_vl.py. Patches are in the order of squares that become
one feature, and within a square in the order of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from numaserve.workers.layers.axes import Axis, Columns
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.mlp import PlainMlp
from numaserve.workers.layers.norm import LayerNorm
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
from numaserve.workers.layers.vision import CHANNELS, FEATURES, PATCHES, Tower

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Residual, Tensor
    from numaserve.workers.program.recording.builder import ProgramBuilder
    from numaserve.workers.program.rope import RopeConfig

TAPS = "taps"  # given: for each patch the numbers of rows of the positions' table, and their weights
ROTARY = "rotary"  # given: for each patch cosines and sines by its row, and then by its column
NUM_TAPS = 4  # the positions around a patch, between which the table is interpolated


@dataclass(frozen=True)
class GridEmbedding(Layer):
    """A linear map of the pixels of each patch, and rows of a square table of positions, interpolated.

    The checkpoint maps `frames` frames of a video; those of an image are equal.
    """

    module: str
    patch: int  # pixels of a side
    frames: int
    positions: Table
    gguf: str = ""

    @property
    def pixels(self) -> int:
        """Values of a patch, in all frames."""
        return CHANNELS * self.frames * self.patch**2

    @cached_property
    def columns(self) -> Axis:
        """The values of a patch, which ranks divide."""
        return Columns("pixels", self.pixels)

    @cached_property
    def weight(self) -> MatrixParameter:
        """The map, [hidden, the rank's values], bf16 always. The checkpoint has it as a convolution."""
        return MatrixParameter((whole(self._source),), Split(self.columns), rule="bf16")

    @cached_property
    def bias(self) -> VectorParameter | None:
        """The bias, whole on every rank and added to the sum over the ranks."""
        return vector(self._source.bias)

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.weight, self.bias)

    def forward(self, b: ProgramBuilder, part: RankPart, pixels: Operand) -> Residual:
        """The embeddings of patches, whole on every rank: fp32 [patches, hidden]. `pixels` is bf16 [patches, values of
        a patch]."""
        partial = b.linear_partial(b.columns(pixels, part.along(self.columns)), part.matrix(self.weight))
        table = self.positions
        b.add_taps(partial, part.matrix(table.rows), name=TAPS, first_row=part.along(table.axis).start, taps=NUM_TAPS)
        return b.summed(partial, bias=part.vector(self.bias))

    @cached_property
    def _source(self) -> Source:
        kernel = (CHANNELS, self.frames, self.patch, self.patch)
        return Source(self.module, (self.positions.hidden, self.pixels), self.gguf, quantizable=False, kernel=kernel)


@dataclass(frozen=True)
class Merger(Layer):
    """A norm and an MLP that make one feature of a square of patches. The norm is that of each patch, or `merged` of
    the whole square."""

    norm: LayerNorm
    mlp: PlainMlp
    factor: int
    merged: bool = False

    def forward(self, b: ProgramBuilder, part: RankPart, x: Residual | Tensor) -> Operand:
        """The features, whole on every rank: bf16 [squares, columns of the decoder]. `x` is fp32 [patches, columns]."""
        if self.merged:
            squares = self.norm.forward(b, part, b.merge_rows(x, side=self.factor, factor=self.factor, many=True))
        else:
            squares = b.merge_rows(self.norm.forward(b, part, x), side=self.factor, factor=self.factor, many=True)
        return b.rounded(b.summed(self.mlp.forward(b, part, squares), bias=self.mlp.bias(part)))


@dataclass(frozen=True)
class GridTower(Tower):
    """A tower whose patches are rotated by their rows and columns, and whose residual stream is also read after some of
    its blocks (DeepStack, Meng et al., 2024)."""

    embedding: GridEmbedding
    merger: Merger
    mergers: tuple[Merger, ...]  # of the streams after the blocks `after`
    after: tuple[int, ...]
    rope: RopeConfig  # of a coordinate, for half of the pairs of a head
    most: int = 0  # features of an image

    @property
    def children(self) -> list[Layer]:
        """See `Layer`: in the order of the forward pass."""
        return [self.embedding, *self.blocks, self.merger, *self.mergers]

    @property
    def patch(self) -> int:
        """See `Tower`."""
        return self.embedding.patch

    @property
    def patches(self) -> int:
        """See `Tower`."""
        return self.most * self.factor**2

    @property
    def hidden(self) -> int:
        """See `Tower`."""
        return self.embedding.positions.hidden

    @property
    def side(self) -> int:
        """The rows and columns of the table of positions."""
        return int(self.embedding.positions.count**0.5)

    @property
    def deep(self) -> tuple[str, ...]:
        """See `Tower`."""
        return tuple(f"{FEATURES}.{index}" for index in range(len(self.mergers)))

    def bounded(self, features: int) -> Self:
        """See `Tower`."""
        return replace(self, most=features)

    def forward(self, b: ProgramBuilder, part: RankPart) -> None:
        """See `Tower`."""
        residual = self.embedding.forward(b, part, b.rounded(b.given(PATCHES, self.embedding.pixels)))
        (place,), streams = self.layer_caches(part).places, []
        b.rotate_as_given(part.rope(self.rope), ROTARY, self.rope.rotary_dim)
        for index, block in enumerate(self.blocks):
            block.forward(b, part, residual, place)
            if index in self.after:
                streams.append(b.activated(residual, "none"))  # a copy, since the blocks after it add to the stream
        b.keep(FEATURES, self.merger.forward(b, part, residual))
        for name, merger, stream in zip(self.deep, self.mergers, streams, strict=True):
            b.keep(name, merger.forward(b, part, stream))

    def scratch_columns(self, part: RankPart) -> int:
        """See `Layer`. Pixels are there in fp32 and bf16, and squares have as many columns as their patches
        together."""
        most = max(block.scratch_columns(part) for block in self.blocks)
        mergers = (self.merger, *self.mergers)
        squares = sum(merger.mlp.scratch_columns(part) + 3 * merger.mlp.hidden for merger in mergers)
        return most + 2 * self.embedding.pixels + (3 * len(mergers) + 1) * self.hidden + squares

    def message_columns(self, part: RankPart) -> int:
        """See `Layer`: its own residual stream is not that of the decoder."""
        return max(super().message_columns(part), self.hidden, self.merger.mlp.hidden)
