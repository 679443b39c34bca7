"""Vision towers whose images have any number of rows and columns of patches: those of Qwen3-VL, Qwen3.5, Pixtral,
PaddleOCR-VL and Kimi K2.5.

The sources are transformers 5.24, models/qwen3_vl, models/pixtral, models/mistral3, models/paddleocr_vl and
models/kimi_k25. Patches are in the order of squares that become one feature, and within a square in the order of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import TYPE_CHECKING

from numaserve.workers.layers.any_size_tower import AnySizeTower
from numaserve.workers.layers.axes import Axis, Columns
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.mlp import PlainMlp
from numaserve.workers.layers.norm import AnyNorm, LayerNorm, Norm
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
from numaserve.workers.layers.vision import CHANNELS, FEATURES, PATCHES, Connector

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Residual, Tensor
    from numaserve.workers.program.recording.builder import ProgramBuilder
    from numaserve.workers.program.rope import RopeConfig

TAPS = "taps"  # given: for each patch the numbers of rows of the positions' table, and their weights
ROTARY = "rotary"  # given: for each patch cosines and sines by its row, and then by its column
NUM_TAPS, CUBIC_TAPS = 4, 16  # the positions around a patch, between which the table is interpolated


@dataclass(frozen=True)
class GridEmbedding(Layer):
    """A linear map of the pixels of each patch, and maybe rows of a square table of positions, interpolated, and a norm
    of the sum.

    The corners of the table are the positions of the corner patches. If the table is `stretched`, it covers the image
    instead, and a patch has the position of its centre; `cubic` interpolation is then possible. The checkpoint maps
    `frames` frames of a video, or images: those of an image are equal.
    """

    module: str
    patch: int  # pixels of a side
    hidden: int
    frames: int | None = None
    positions: Table | None = None
    norm: Norm | None = None
    biased: bool = True
    gguf: str = ""
    stretched: bool = False
    cubic: bool = False

    @property
    def taps(self) -> int:
        """The rows of the table that are a position's."""
        return CUBIC_TAPS if self.cubic else NUM_TAPS

    @property
    def pixels(self) -> int:
        """Values of a patch, in all frames."""
        return CHANNELS * (self.frames or 1) * self.patch**2

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
        return vector(self._source.bias if self.biased else None)

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.weight, self.bias)

    def forward(self, b: ProgramBuilder, part: RankPart, pixels: Operand) -> Residual:
        """The embeddings of patches, whole on every rank: fp32 [patches, hidden]. `pixels` is bf16 [patches, values of
        a patch]."""
        partial = b.linear_partial(b.columns(pixels, part.along(self.columns)), part.matrix(self.weight))
        table, norm, bias = self.positions, self.norm, part.vector(self.bias)
        if table is not None:
            first = part.along(table.axis).start
            b.add_taps(partial, part.matrix(table.rows), name=TAPS, first_row=first, taps=self.taps)
        if norm is None:
            return b.summed(partial, bias=bias)
        return b.summed(partial, norm.weight(part), norm.eps, bias=bias)

    @cached_property
    def _source(self) -> Source:
        frames = () if self.frames is None else (self.frames,)
        kernel = (CHANNELS, *frames, self.patch, self.patch)
        return Source(self.module, (self.hidden, self.pixels), self.gguf, quantizable=False, kernel=kernel)


@dataclass(frozen=True)
class Merger(Layer):
    """A norm and an MLP that make one feature of a square of patches. The norm is that of each patch, or `merged` of
    the whole square. A linear map may reduce squares before the MLP."""

    norm: AnyNorm
    mlp: PlainMlp
    factor: int
    merged: bool = False
    reduction: Connector | None = None

    def forward(self, b: ProgramBuilder, part: RankPart, x: Residual | Tensor) -> Operand:
        """The features, whole on every rank: bf16 [squares, columns of the decoder]. `x` is fp32 [patches, columns]."""
        if self.merged:
            squares = self.norm.forward(b, part, b.merge_rows(x, side=self.factor, factor=self.factor, many=True))
        else:
            squares = b.merge_rows(self.norm.forward(b, part, x), side=self.factor, factor=self.factor, many=True)
        if self.reduction is not None:
            squares = self.reduction.forward(b, part, squares)
        return b.rounded(b.summed(self.mlp.forward(b, part, squares), bias=self.mlp.bias(part)))


@dataclass(frozen=True)
class GridTower(AnySizeTower):
    """A tower whose patches are rotated by their rows and columns, and whose residual stream may also be read after
    some of its blocks (DeepStack, Meng et al., 2024). A `norm` of the stream may come after the last block."""

    embedding: GridEmbedding
    merger: Merger
    rope: RopeConfig  # of the row, for the first half of the pairs of a head
    column_rope: RopeConfig  # of the column, for the second half
    mergers: tuple[Merger, ...] = ()  # of the streams after the blocks `after`
    after: tuple[int, ...] = ()
    pairs_in_gguf: bool = False  # rotated dimensions lie in pairs in GGUF files
    norm: LayerNorm | None = None
    columns_first: bool = False  # see `AnySizeTower`
    plain: bool = False  # no quantization of a folder is of the tower, whatever config.json seems to say

    @property
    def children(self) -> list[Layer]:
        """See `Layer`: in the order of the forward pass."""
        last = [] if self.norm is None else [self.norm]
        return [self.embedding, *self.blocks, *last, self.merger, *self.mergers]

    @property
    def patch(self) -> int:
        """See `Tower`."""
        return self.embedding.patch

    @property
    def hidden(self) -> int:
        """See `Tower`."""
        return self.embedding.hidden

    @property
    def frames(self) -> int:
        """See `AnySizeTower`."""
        return self.embedding.frames or 1

    @property
    def side(self) -> int:
        """See `AnySizeTower`: the table of positions is square."""
        table = self.embedding.positions
        return 0 if table is None else isqrt(table.count)

    @property
    def rotations(self) -> tuple[RopeConfig, ...]:
        """See `AnySizeTower`."""
        return self.rope, self.column_rope

    @property
    def deep(self) -> tuple[str, ...]:
        """See `Tower`."""
        return tuple(f"{FEATURES}.{index}" for index in range(len(self.mergers)))

    def forward(self, b: ProgramBuilder, part: RankPart) -> None:
        """See `Tower`."""
        residual = self.embedding.forward(b, part, b.rounded(b.given(PATCHES, self.embedding.pixels)))
        (place,), streams = self.layer_caches(part).places, []
        b.rotate_as_given(part.rope(self.rope), ROTARY, self.rope.rotary_dim)
        for index, block in enumerate(self.blocks):
            block.forward(b, part, residual, place)
            if index in self.after:
                streams.append(b.activated(residual, "none"))  # a copy, since the blocks after it add to the stream
        if self.norm is not None:
            self.norm.apply(b, part, residual)
        b.keep(FEATURES, self.merger.forward(b, part, residual))
        for name, merger, stream in zip(self.deep, self.mergers, streams, strict=True):
            b.keep(name, merger.forward(b, part, stream))

    def scratch_columns(self, part: RankPart) -> int:
        """See `Layer`. Pixels are there in fp32 and bf16, and squares have as many columns as their patches
        together."""
        most = max(block.scratch_columns(part) for block in self.blocks)
        mergers = (self.merger, *self.mergers)
        squares = sum(merger.scratch_columns(part) + 3 * merger.mlp.hidden for merger in mergers)
        return most + 2 * self.embedding.pixels + (3 * len(mergers) + 1) * self.hidden + squares

    def message_columns(self, part: RankPart) -> int:
        """See `Layer`: its own residual stream is not that of the decoder."""
        return max(super().message_columns(part), self.hidden, self.merger.mlp.hidden)
