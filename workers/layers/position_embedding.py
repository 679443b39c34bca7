"""Embeddings of encoders: those of tokens, of learned positions and of token types, and a layer norm of their sum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.layers.axes import Axis, Units
from numaserve.workers.layers.embedding import Embedding
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.norm import LayerNorm
from numaserve.workers.layers.parameters import MatrixParameter, Order, Parameter, Part, Source
from numaserve.workers.program.handles import MATRIX_PAD, TILE_ROWS

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Residual
    from numaserve.workers.program.recording.builder import ProgramBuilder
    from numaserve.workers.program.slots import RowIndex


@dataclass(frozen=True)
class Table(Layer):
    """A row of `hidden` columns for each of `count` positions or types; ranks divide the rows."""

    index: RowIndex
    module: str
    count: int
    hidden: int
    gguf: str
    shift: int = 0  # the row of index 0
    gridded: bool = False  # the checkpoint has two dimensions of rows

    @cached_property
    def axis(self) -> Axis:
        """The rows."""
        return Units(f"{self.index}s", self.count, TILE_ROWS)

    @cached_property
    def rows(self) -> MatrixParameter:
        """The rows, bf16 always."""
        shape = self.count, self.hidden
        source = Source(self.module, shape, self.gguf, quantizable=False, gridded=self.gridded)
        return MatrixParameter((Part(source, Order(self.count), self.axis),), rule="bf16")

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield self.rows


@dataclass(frozen=True)
class SummedEmbedding(Embedding):
    """The layer norm of token embeddings plus rows of other tables."""

    unit: int = MATRIX_PAD  # whole cache lines of logits, which ranks exchange
    tables: tuple[Table, ...] = ()
    norm: LayerNorm = field(kw_only=True)

    @property
    def token_types(self) -> int:
        """See `Embedding`."""
        return sum(each.count for each in self.tables if each.index == "type")

    def forward(self, b: ProgramBuilder, part: RankPart) -> Residual:
        """See `Embedding`."""
        more = [(each.index, part.matrix(each.rows), part.along(each.axis).start - each.shift) for each in self.tables]
        first_row = part.along(self.axis).start
        residual = b.embed(part.matrix(self.table), first_row=first_row, scale=self.scale, more=more)
        self.norm.apply(b, part, residual)
        return residual
