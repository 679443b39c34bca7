"""The decoder that the families share: blocks around a residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.interface.windows import Window, distinct
from numaserve.workers.layers.block import Block, rank_shape
from numaserve.workers.layers.caches import Cache, NumberedCaches, numbered
from numaserve.workers.layers.dense import Dense, pooled_through
from numaserve.workers.layers.embedding import Embedding, Head
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.layer_inputs import LayerInputs
from numaserve.workers.layers.masked_head import MaskedHead
from numaserve.workers.layers.mixers.rotation import rotate_by_axes
from numaserve.workers.layers.norm import AnyNorm
from numaserve.workers.layers.parameters import MatrixParameter
from numaserve.workers.layers.predictor import HIDDEN_STATES, Predictor
from numaserve.workers.layers.token_head import TokenHead
from numaserve.workers.layers.vision import FEATURES, Tower
from numaserve.workers.program.ops.rows import Pooling
from numaserve.workers.program.setup import RankShape

if TYPE_CHECKING:
    from numaserve.workers.interface.settings import KvCacheDtype
    from numaserve.workers.layers.partition import Partition, RankPart
    from numaserve.workers.program.buffers import Residual
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class Decoder(Layer):
    """A whole model, from token ids to logits, or without a head to the vectors of sequences that are pooled."""

    embedding: Embedding
    blocks: tuple[Block, ...]
    norm: AnyNorm
    head: Head | None
    predictor: Predictor | None = None  # makes draft tokens for the decoder, with a program of its own
    inputs: LayerInputs | None = None  # that the layers have besides the residual stream
    pooling: Pooling = "last"  # of sequences, without a head
    dense: tuple[Dense, ...] = ()  # layers of pooled sequences
    masked_head: MaskedHead | None = None  # the maxima of whose logits are the vectors of pooled sequences
    token_head: TokenHead | None = None  # of single tokens of pooled sequences that ask for it
    shows_rows: bool = False  # whether the hidden states of rows of logits are read from outside
    tower: Tower | None = None  # makes features of images, with a program of its own

    @property
    def borrows(self) -> bool:
        """Whether it reads the KV cache of another decoder, for which it drafts."""
        return False

    def drafting_for(self, served: Decoder) -> Decoder:
        """Return the decoder as it drafts for another one. Raises `OperatorError` if it cannot."""
        return self

    def shape(self, part: RankPart) -> RankShape:
        """The sizes that a program is made for."""
        return rank_shape(part, self.embedding, self.layer_caches(part))

    def forward(self, b: ProgramBuilder, part: RankPart) -> None:
        """Append the whole forward pass of a rank, from token ids to samples or pooled rows, to the program."""
        residual = self.begin(b, part)
        rotate_by_axes(b, part, self.blocks)
        inputs = None if self.inputs is None else self.inputs.forward(b, part, residual)
        for layer, (block, place) in enumerate(zip(self.blocks, self.layer_caches(part).places, strict=True)):
            block.attend(b, part, residual, place)
            if layer == self.narrows_in:
                residual, inputs = b.narrow(residual, inputs)
            block.complete(b, part, residual, inputs)
            if self.tower is not None and layer < len(self.tower.deep):
                b.place_rows(self.tower.deep[layer], residual, self.tower.features, add=True)
        self.end(b, part, residual)

    def begin(self, b: ProgramBuilder, part: RankPart) -> Residual:
        """Return the residual stream before the first block, with the features of images in their places."""
        residual = self.embedding.forward(b, part)
        if self.tower is not None:
            b.place_rows(FEATURES, residual, self.tower.features)
        return residual

    def end(self, b: ProgramBuilder, part: RankPart, residual: Residual) -> None:
        """Append the end: samples, or vectors of sequences that are pooled."""
        if self.masked_head is not None:
            b.answer(self.masked_head.forward(b, part, self.norm.forward(b, part, residual)))
        elif self.head is None:
            vectors = pooled_through(self.dense, b, part, self.norm.pool(b, part, residual, self.pooling))
            if self.token_head is not None:
                self.token_head.forward(b, part, residual)
            b.answer(vectors)
        else:
            x = self.norm.forward(b, part, residual)
            self.head.forward(b, part, x)
            if self.predictor is not None:
                b.keep(HIDDEN_STATES, x)
            elif self.shows_rows:
                b.keep(HIDDEN_STATES, b.logit_rows(x))

    def check_ranks(self, partition: Partition) -> None:
        """Raise `OperatorError` for ranks that cannot run it."""

    @property
    def narrows_in(self) -> int | None:
        """The last layer that keeps something for later tokens: after its attention only rows of logits are computed.
        None where other rows are read after the layers."""
        if self.head is None or self.predictor is not None:
            return None
        last = max(layer for layer, block in enumerate(self.blocks) if block.attention.keeps_tokens)
        return None if self.tower is not None and last < len(self.tower.deep) else last

    def scratch_columns(self, part: RankPart) -> int:
        """The columns of the block that has most, whose results are gone when the next begins, and of other layers."""
        most = max(block.scratch_columns(part) for block in self.blocks)
        others = (self.inputs, self.predictor, self.masked_head, self.token_head)
        return most + sum(each.scratch_columns(part) for each in others if each is not None)

    def message_columns(self, part: RankPart) -> int:
        """See `Layer`. The tower's messages have rows of their own number: the patches of a tile."""
        return max(child.message_columns(part) for child in self.children if child is not self.tower)

    def pooled_columns(self, part: RankPart) -> int:
        """The columns of intermediate results for each sequence that is pooled, besides those of its tokens."""
        return 0 if self.masked_head is None else self.masked_head.row_columns(part)

    def pooled_message_columns(self, part: RankPart) -> int:
        """The columns, fp32, of the message of a rank to the others for each sequence that is pooled."""
        return 0 if self.masked_head is None else self.masked_head.row_message_columns(part)

    def layer_caches(self, part: RankPart) -> NumberedCaches:
        """The caches of its blocks, numbered within their kinds."""
        return numbered(self.caches, part)

    @cached_property
    def matrices(self) -> tuple[MatrixParameter, ...]:
        """The matrices of its blocks, in order."""
        parameters = (parameter for block in self.blocks for parameter in block.parameters())
        return tuple(each for each in parameters if isinstance(each, MatrixParameter))

    @cached_property
    def adapted(self) -> frozenset[MatrixParameter]:
        """The matrices of its blocks that low-rank adapters can update."""
        return frozenset(each for each in self.matrices if each.takes_adapters)

    @property
    def adapted_lines(self) -> int:
        """The number of rows and columns of these matrices, as the checkpoint has them: values of an adapter of rank
        1."""
        sources = {source for each in self.adapted for source in each.sources}
        return sum(sum(source.shape) for source in sources)

    @property
    def windows(self) -> list[Window]:
        """The windows that may have page tables of their own."""
        return distinct(cache.span for cache in self.caches)

    def window_page_bytes(self, part: RankPart, dtype: KvCacheDtype) -> list[int]:
        """Memory of a page of the layers with each window on one rank, which is part of `page_bytes`."""
        return [
            sum(cache.page_bytes(part, dtype) for cache in self.caches if cache.span == window)
            for window in self.windows
        ]

    @property
    def caches(self) -> list[Cache]:
        """The cache of each block."""
        return [block.attention.cache for block in self.blocks]
