"""Attention and an MLP around a residual stream, and the sizes of a program of such blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numaserve.workers.layers.caches import NumberedCaches
from numaserve.workers.layers.embedding import Embedding
from numaserve.workers.layers.layer import FeedForward, Layer, Mixer
from numaserve.workers.layers.norm import AnyNorm, Norm
from numaserve.workers.program.setup import RankShape

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Residual, Tensor
    from numaserve.workers.program.caches import CacheIndex
    from numaserve.workers.program.handles import Vector
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class Block(Layer):
    """A layer of attention, then maybe one of an MLP, each with a norm before it and maybe one after it."""

    input_norm: AnyNorm
    attention: Mixer
    mlp_norm: AnyNorm | None
    mlp: FeedForward | None
    post_attention_norm: Norm | None = None
    post_mlp_norm: Norm | None = None

    def forward(self, b: ProgramBuilder, part: RankPart, residual: Residual, place: CacheIndex) -> None:
        """Add its result to the residual stream, fp32 [tokens, hidden]; `place` is that of its cache."""
        self.attend(b, part, residual, place)
        self.complete(b, part, residual)

    def attend(self, b: ProgramBuilder, part: RankPart, residual: Residual, place: CacheIndex) -> None:
        """Add the result of attention."""
        x = self.input_norm.forward(b, part, residual)
        partial = self.attention.forward(b, part, x, place)
        after = self.post_attention_norm
        b.add_all_reduce(
            residual, partial, eps=_eps(after), post_norm=_weight(after, part), bias=self.attention.bias(part)
        )

    def complete(self, b: ProgramBuilder, part: RankPart, residual: Residual, inputs: Tensor | None = None) -> None:
        """Add the result of the MLP, and whatever else a kind of block has after attention. `inputs` are those of all
        layers, where the model has some."""
        self.feed(b, part, residual)

    def feed(self, b: ProgramBuilder, part: RankPart, residual: Residual, scale: Vector | None = None) -> None:
        """Add the result of the MLP, and multiply the stream by `scale` after that; only with a norm after the MLP."""
        if self.mlp_norm is None or self.mlp is None:
            return
        x = self.mlp_norm.forward(b, part, residual)
        partial, after = self.mlp.forward(b, part, x), self.post_mlp_norm
        bias = self.mlp.bias(part)
        b.add_all_reduce(residual, partial, eps=_eps(after), post_norm=_weight(after, part), bias=bias, scale=scale)


def rank_shape(part: RankPart, embedding: Embedding, layers: NumberedCaches, *, extra_tokens: int = 0) -> RankShape:
    """The sizes of a rank's program whose layers have those caches."""
    return RankShape(
        hidden_size=embedding.hidden,
        vocab_bounds=part.partition.bounds(embedding.axis),
        caches=layers.caches,
        states=layers.states,
        extra_tokens=extra_tokens,
    )


def _weight(norm: Norm | None, part: RankPart) -> Vector | None:
    return None if norm is None else norm.weight(part)


def _eps(norm: Norm | None) -> float:
    return 0.0 if norm is None else norm.eps
