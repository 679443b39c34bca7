"""The begin and the end of a model: token embeddings, and the logits of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.layers.axes import Axis, Units
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.parameters import MatrixParameter, Order, Parameter, Part, Rule, Source
from numaserve.workers.program.handles import TILE_ROWS

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Residual
    from numaserve.workers.program.recording.builder import ProgramBuilder

EMBEDDING, HEAD = "embed_tokens", "lm_head"


@dataclass(frozen=True)
class Embedding(Layer):
    """A row for each token of the vocabulary, times `scale`; ranks divide the vocabulary in units of `unit` rows."""

    vocabulary: int
    hidden: int
    scale: float = 1.0
    module: str = EMBEDDING
    unit: int = TILE_ROWS

    @cached_property
    def axis(self) -> Axis:
        """The rows of the vocabulary, which ranks divide."""
        return Units("vocabulary", self.vocabulary, self.unit)

    @property
    def token_types(self) -> int:
        """The number of token types that have an embedding; 0: the model has no types."""
        return 0

    @cached_property
    def table(self) -> MatrixParameter:
        """The embeddings, bf16 always."""
        return self.rows_of(self.module, "token_embd", "bf16")

    def rows_of(self, module: str, gguf: str, rule: Rule, tied_to: MatrixParameter | None = None) -> MatrixParameter:
        """A matrix with a row for each token."""
        source = Source(module, (self.vocabulary, self.hidden), gguf, quantizable=module == HEAD)
        return MatrixParameter((Part(source, Order(self.vocabulary), self.axis),), rule=rule, tied_to=tied_to)

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield self.table

    def forward(self, b: ProgramBuilder, part: RankPart) -> Residual:
        """The embeddings of a step's tokens, whole on every rank: fp32 [tokens, hidden]."""
        return b.embed(part.matrix(self.table), first_row=part.along(self.axis).start, scale=self.scale)


@dataclass(frozen=True)
class Head(Layer):
    """The output head, with a matrix of its own or, `tied`, with the embeddings."""

    embedding: Embedding
    tied: bool
    softcap: float | None = None

    @property
    def children(self) -> list[Layer]:
        """None: the embedding is a layer of the model."""
        return []

    @cached_property
    def parameter(self) -> MatrixParameter:
        """The matrix, with a row for each token of the vocabulary."""
        if self.tied:
            return self.embedding.rows_of(self.embedding.module, "token_embd", "head", self.embedding.table)
        return self.embedding.rows_of(HEAD, "output", "head")

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield self.parameter

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand) -> None:
        """Samples of the rows that want one; `x` is bf16 [tokens, hidden]."""
        b.sample(b.lm_head(x, part.matrix(self.parameter)), softcap=self.softcap)
