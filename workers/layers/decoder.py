"""The decoder that the families share: attention and an MLP around a residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numaserve.workers.errors import OperatorError
from numaserve.workers.layers.embedding import Embedding, Head
from numaserve.workers.layers.layer import FeedForward, Layer, Mixer
from numaserve.workers.layers.norm import Norm
from numaserve.workers.program.setup import RankShape

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Residual
    from numaserve.workers.program.builder import ProgramBuilder
    from numaserve.workers.program.handles import Vector


@dataclass(frozen=True)
class Block(Layer):
    """A layer of attention, then one of an MLP, each with a norm before it and maybe one after it."""

    input_norm: Norm
    attention: Mixer
    mlp_norm: Norm
    mlp: FeedForward
    post_attention_norm: Norm | None = None
    post_mlp_norm: Norm | None = None

    def forward(self, b: ProgramBuilder, part: RankPart, residual: Residual, index: int) -> None:
        """Add what it makes to the residual stream, fp32 [tokens, hidden]; `index` is that of its cache."""
        eps = self.input_norm.eps
        x = self.input_norm.forward(b, part, residual)
        partial = self.attention.forward(b, part, x, index)
        bias = self.attention.bias(part)
        b.add_all_reduce(residual, partial, eps=eps, post_norm=_weight(self.post_attention_norm, part), bias=bias)
        x = self.mlp_norm.forward(b, part, residual)
        partial = self.mlp.forward(b, part, x)
        b.add_all_reduce(residual, partial, eps=eps, post_norm=_weight(self.post_mlp_norm, part))


@dataclass(frozen=True)
class Decoder(Layer):
    """A whole model, from token ids to logits, or without a head to the final norms of sequences that are pooled."""

    embedding: Embedding
    blocks: tuple[Block, ...]
    norm: Norm
    head: Head | None

    def shape(self, part: RankPart) -> RankShape:
        """The sizes that a program is made for. Raises `OperatorError` where layers differ in what they cache."""
        caches = {block.attention.cache for block in self.blocks}
        if len(caches) > 1:
            raise OperatorError("the model's layers differ in what they keep of a token, which is not supported")
        (cache,) = caches
        bounds = part.partition.bounds
        return RankShape(
            q_heads=len(part.along(cache.queries)),
            kv_heads=len(part.along(cache.keys)),
            head_dim=cache.head_dim,
            num_layers=len(self.blocks),
            hidden_size=self.embedding.hidden,
            vocab_bounds=bounds(self.embedding.axis),
            value_dim=cache.value_dim,
            head_bounds=bounds(cache.queries),
        )

    def forward(self, b: ProgramBuilder, part: RankPart) -> None:
        """Append the whole forward pass of a rank, from token ids to samples or pooled rows, to the program."""
        residual = self.embedding.forward(b, part)
        for index, block in enumerate(self.blocks):
            block.forward(b, part, residual, index)
        if self.head is None:
            b.pool(residual, self.norm.weight(part), self.norm.eps)
        else:
            self.head.forward(b, part, self.norm.forward(b, part, residual))

    def scratch_columns(self, part: RankPart) -> int:
        """The columns of the block that has most: a block's results are gone when the next begins."""
        return max(block.scratch_columns(part) for block in self.blocks)


def _weight(norm: Norm | None, part: RankPart) -> Vector | None:
    return None if norm is None else norm.weight(part)
