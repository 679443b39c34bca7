"""The head of a masked language model, which gives texts sparse vectors (SPLADE)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.layers.dense import Dense
from numaserve.workers.layers.embedding import Embedding
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.parameters import MatrixParameter, Order, Parameter, Part, Source, VectorParameter

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Tensor
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class MaskedHead(Layer):
    """The logits of every token of a text, and their maximum over the tokens, for each token of the vocabulary.

    logits = weight · transform(x) + bias, where the weight is a matrix of its own, named by `module`, or, `tied`,
    that of the embeddings. Ranks divide the vocabulary, and exchange the maxima alone.
    """

    transform: Dense  # with a norm
    embedding: Embedding
    module: str
    bias_name: str  # of the bias, [vocabulary]; empty: there is none
    tied: bool

    @property
    def children(self) -> list[Layer]:
        """The layer before the logits: the embedding is a layer of the model."""
        return [self.transform]

    @cached_property
    def weight(self) -> MatrixParameter:
        """The declaration of the weight, with a row for each token of the vocabulary."""
        if self.tied:
            return self.embedding.rows_of(self.embedding.module, "", "head", self.embedding.table)
        return self.embedding.rows_of(self.module, "", "head")

    @cached_property
    def bias(self) -> VectorParameter | None:
        """The declaration of the bias, with the rank's tokens of the vocabulary."""
        if not self.bias_name:
            return None
        count, axis = self.embedding.vocabulary, self.embedding.axis
        return VectorParameter((Part(Source(self.bias_name, (count,)), Order(count), axis),))

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.weight, self.bias)

    def scratch_columns(self, part: RankPart) -> int:
        """See `Layer`. The transform has its input, its product, the activation and the norm."""
        return 3 * self.transform.inputs + self._columns(part)

    def row_columns(self, part: RankPart) -> int:
        """Columns, fp32, of the results for each text on one rank, as if no two shared memory."""
        return 2 * self._columns(part) + self.embedding.vocabulary

    def row_message_columns(self, part: RankPart) -> int:
        """Columns, fp32, for each text of a rank's message to the others."""
        return self._columns(part)

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand) -> Tensor:
        """The maxima of each text that is pooled: fp32 [texts, vocabulary]; `x` is bf16 [tokens, hidden]."""
        logits = b.linear(self.transform.normed(b, part, x), part.matrix(self.weight), part.vector(self.bias))
        return b.pool_columns(logits, "max", part.partition.bounds(self.embedding.axis))

    def _columns(self, part: RankPart) -> int:
        return len(part.along(self.embedding.axis))
