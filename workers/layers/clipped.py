"""Attention and MLPs of a vision tower, of whose products inputs and outputs are clipped (Gemma 4).

The bounds are scalars of the checkpoint, and differ from product to product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.mlp import Mlp
from numaserve.workers.layers.norm import Norm
from numaserve.workers.layers.parameters import MatrixParameter, Order, Parameter, Part, Source, VectorParameter

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Partial, Residual, Tensor
    from numaserve.workers.program.caches import CacheIndex
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class Clips(Layer):
    """The bounds of a product, by its `module` and its name in GGUF files."""

    module: str
    gguf: str

    @cached_property
    def inputs(self) -> VectorParameter:
        """The least and the largest input."""
        return self._bounds("input")

    @cached_property
    def outputs(self) -> VectorParameter:
        """The least and the largest output."""
        return self._bounds("output")

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.inputs, self.outputs)

    def before(self, b: ProgramBuilder, part: RankPart, x: Operand) -> Operand:
        """`x` as the product reads it."""
        return b.clamped(x, part.whole(self.inputs))

    def after(self, b: ProgramBuilder, part: RankPart, x: Residual) -> Residual:
        """The sum `x` of all ranks' products as the next layer reads it."""
        return b.clamped(x, part.whole(self.outputs))

    def _bounds(self, kind: str) -> VectorParameter:
        names = (f"{kind}_min", f"{kind}_max")
        sources = (Source(f"{self.module}.{name}", (1,), f"{self.gguf}.{name}") for name in names)
        return VectorParameter(tuple(Part(source, Order(1)) for source in sources))


@dataclass(frozen=True)
class ClippedAttention(Attention):
    """Attention whose queries, keys and values are products of their own."""

    clips: tuple[Clips, ...] = ()  # of queries, keys and values, and of the output

    @cached_property
    def projections(self) -> tuple[MatrixParameter, ...]:
        """The matrices of queries, keys and values, with the rows of the rank's heads."""
        return tuple(MatrixParameter((part,), rule=self.rule) for part in self._heads)

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (*self.projections, self.o)

    def scratch_columns(self, part: RankPart) -> int:
        """See `Layer`. Each product has inputs of its own, and heads are there twice."""
        return 2 * super().scratch_columns(part) + 3 * self.hidden

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand, place: CacheIndex) -> Partial:
        """See `Mixer`."""
        qkv = b.clamped_beside(
            [
                (b.linear(clips.before(b, part, x), part.matrix(weight)), part.whole(clips.outputs))
                for clips, weight in zip(self.clips, self.projections, strict=False)
            ]
        )
        q = self.norms.store(b, part, qkv, part.rope(self.rotation.rope), place, source=self.source)
        attended = self.mask.attend(b, part, q, self.scale, place, value_scale=self.value_scale)
        return b.linear_partial(self.clips[-1].before(b, part, attended), part.matrix(self.o))


@dataclass(frozen=True)
class ClippedMlp(Mlp):
    """An MLP whose gate and up are products of their own."""

    clips: tuple[Clips, ...] = ()  # of gate, up and down

    @cached_property
    def projections(self) -> tuple[MatrixParameter, ...]:
        """The matrices of gate and up, with the rank's rows."""
        return tuple(MatrixParameter((part,), rule=self.rule) for part in self.gate_up.parts)

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (*self.projections, self.down)

    def scratch_columns(self, part: RankPart) -> int:
        """See `Layer`. Each product has inputs of its own, and results are there twice."""
        return 2 * super().scratch_columns(part) + 2 * self.hidden

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand) -> Partial:
        """See `FeedForward`."""
        gate, up = (
            self._clipped(b, part, b.linear(clips.before(b, part, x), part.matrix(weight)), clips)
            for clips, weight in zip(self.clips, self.projections, strict=False)
        )
        hidden = b.multiply_rounded(up, gate, self.activation)
        return b.linear_partial(self.clips[-1].before(b, part, hidden), part.matrix(self.down))

    def _clipped(self, b: ProgramBuilder, part: RankPart, x: Tensor, clips: Clips) -> Tensor:
        return b.clamped(x, part.whole(clips.outputs))


@dataclass(frozen=True)
class ClippedBlock(Block):
    """A block of clipped layers, with a norm after each."""

    def attend(self, b: ProgramBuilder, part: RankPart, residual: Residual, place: CacheIndex) -> None:
        """See `Block`."""
        attention = self.attention
        assert isinstance(attention, ClippedAttention)  # noqa: S101  blocks of the others are `Block`
        partial = attention.forward(b, part, self.input_norm.forward(b, part, residual), place)
        _add(b, part, residual, attention.clips[-1].after(b, part, b.summed(partial)), self.post_attention_norm)

    def complete(self, b: ProgramBuilder, part: RankPart, residual: Residual, inputs: Tensor | None = None) -> None:
        """See `Block`."""
        mlp, norm = self.mlp, self.mlp_norm
        assert isinstance(mlp, ClippedMlp) and norm is not None  # noqa: S101  as above
        partial = mlp.forward(b, part, norm.forward(b, part, residual))
        _add(b, part, residual, mlp.clips[-1].after(b, part, b.summed(partial)), self.post_mlp_norm)


def _add(b: ProgramBuilder, part: RankPart, residual: Residual, x: Residual, after: Norm | None) -> None:
    assert after is not None  # noqa: S101  there is a norm after each layer
    b.add_norm(residual, x, after.weight(part), after.eps)
