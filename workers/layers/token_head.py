"""Products of the hidden states of single tokens: the vectors of ColBERT, and the weights of BGE-M3's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.parameters import MatrixParameter, Parameter, Source, VectorParameter, whole

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Residual
    from numaserve.workers.program.recording.builder import ProgramBuilder

VECTORS, WEIGHTS = "colbert_linear", "sparse_linear"  # modules
HEAD_COLUMNS = "head_columns"  # of all tokens, which are read from outside


@dataclass(frozen=True)
class TokenHead(Layer):
    """weight · x + bias of each token: `vectors` columns, if there are some, then the weight of the token if it
    `has_weights`.

    It is whole on every rank, like `Dense`, and in bf16. It runs in steps with a sequence that asks for it.
    """

    hidden: int
    vectors: int
    has_weights: bool

    @property
    def columns(self) -> int:
        """All columns of a token."""
        return self.vectors + self.has_weights

    @cached_property
    def weight(self) -> MatrixParameter:
        """The declaration of both weights, below each other: [columns, hidden]."""
        return MatrixParameter(tuple(whole(each) for each in self._sources), rule="bf16")

    @cached_property
    def bias(self) -> VectorParameter:
        """The declaration of both biases, [columns]."""
        return VectorParameter(tuple(whole(each.bias) for each in self._sources))

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.weight, self.bias)

    def scratch_columns(self, part: RankPart) -> int:
        """See `Layer`."""
        return self.hidden + self.columns

    def forward(self, b: ProgramBuilder, part: RankPart, x: Residual) -> None:
        """Let the columns of each token be read from outside: fp32 [tokens, columns]; `x` is fp32 [tokens, hidden]."""
        b.keep(HEAD_COLUMNS, b.linear(b.token_rows(x), part.matrix(self.weight), part.whole(self.bias)))

    @property
    def _sources(self) -> Iterator[Source]:
        if self.vectors:
            yield Source(VECTORS, (self.vectors, self.hidden), quantizable=False)
        if self.has_weights:
            yield Source(WEIGHTS, (1, self.hidden), quantizable=False)
