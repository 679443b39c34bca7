"""Blocks of encoders: each result is added to the residual stream, and a layer norm takes the stream's place (BERT)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.norm import LayerNorm

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Residual
    from numaserve.workers.program.caches import CacheIndex
    from numaserve.workers.program.handles import Vector
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class PostNormBlock(Block):
    """A block with a layer norm of the stream after attention, and one after the MLP."""

    attention_norm: LayerNorm = field(kw_only=True)
    output_norm: LayerNorm = field(kw_only=True)

    def attend(self, b: ProgramBuilder, part: RankPart, residual: Residual, place: CacheIndex) -> None:
        """See `Block`."""
        super().attend(b, part, residual, place)
        self.attention_norm.apply(b, part, residual)

    def feed(self, b: ProgramBuilder, part: RankPart, residual: Residual, scale: Vector | None = None) -> None:
        """See `Block`."""
        super().feed(b, part, residual, scale)
        self.output_norm.apply(b, part, residual)
