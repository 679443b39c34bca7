"""A pipeline stage: some consecutive blocks of a decoder, between stages that have the others."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.caches import Borrowed
from numaserve.workers.layers.decoder import Decoder
from numaserve.workers.layers.division import stage_blocks
from numaserve.workers.layers.layer import Layer

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Residual
    from numaserve.workers.program.recording.builder import ProgramBuilder

RESIDUAL = "residual"  # the rows that a stage is given by the stage before, and that it keeps for the next one


@dataclass(frozen=True)
class Stage(Decoder):
    """The blocks of one stage. The first stage also has the embedding, and the last one the norm and the head.

    Stages exchange the residual stream in fp32, so that the logits have the bits of the whole decoder.
    """

    is_first: bool = True
    is_last: bool = True

    @classmethod
    def of(cls, whole: Decoder, index: int, count: int) -> Self:
        """Return stage `index` of `count`; see `stage_blocks`.

        Raises `OperatorError` for more stages than blocks, and for layers that read what layers of other stages have.
        """
        blocks = len(whole.blocks)
        if count > blocks:
            raise OperatorError(
                f"{count} pipeline stages exceed the model's {blocks} layers: use at most {blocks} stages"
            )
        if whole.inputs is not None or any(isinstance(each, Borrowed) for each in whole.caches):
            raise OperatorError(
                "pipeline stages need a model whose layers read the residual stream alone, and layers of this model"
                " share keys or have inputs of their own: use one stage"
            )
        own = stage_blocks(whole, count)[index]
        is_first, is_last = index == 0, index == count - 1
        values = {field.name: getattr(whole, field.name) for field in fields(whole)}
        values["blocks"] = whole.blocks[own.start : own.stop]
        values["head"] = whole.head if is_last else None
        return cls(**values, is_first=is_first, is_last=is_last)

    @property
    def children(self) -> list[Layer]:
        """See `Layer`. A tied head finds its matrix in the embedding."""
        tied = self.head is not None and self.head.tied
        embedding = [self.embedding] if self.is_first or tied else []
        end = [self.norm] if self.is_last else []
        head = [] if self.head is None else [self.head]
        return [*embedding, *self.blocks, *end, *head]

    def begin(self, b: ProgramBuilder, part: RankPart) -> Residual:
        """See `Decoder`: the residual stream of the stage before."""
        return super().begin(b, part) if self.is_first else b.given_stream(RESIDUAL, self.embedding.hidden)

    def end(self, b: ProgramBuilder, part: RankPart, residual: Residual) -> None:
        """See `Decoder`: the residual stream is kept for the next stage."""
        if self.is_last:
            super().end(b, part, residual)
        else:
            b.keep(RESIDUAL, residual)
