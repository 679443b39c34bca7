"""Multi-token prediction (DeepSeek-V3 technical report, section 2.2): the layer for the token after the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.interface.protocol import KEPT_HIDDEN_STATES
from numaserve.workers.layers.axes import Axis, Columns
from numaserve.workers.layers.block import Block, rank_shape
from numaserve.workers.layers.caches import Cache, HiddenStates, numbered
from numaserve.workers.layers.embedding import Embedding, Head
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.mixers.rotation import rotate_by_axes
from numaserve.workers.layers.norm import Norm
from numaserve.workers.layers.parameters import MatrixParameter, Parameter, Source, Split, whole

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.recording.builder import ProgramBuilder
    from numaserve.workers.program.setup import RankShape

HIDDEN_STATES = "hidden_states"  # the rows that a Program keeps for its drafter, and that a drafter is given


@dataclass(frozen=True)
class Predictor(Layer):
    """The layer that predicts the next token from a token and from the model's hidden state of the token before it.

    The paper pairs each hidden state with the token after it, so its first position has a hidden state. Here each token
    is paired with the hidden state before it: a position depends on nothing after it, and pages of a cached prefix
    serve any continuation. Attention depends on differences of positions only. The first position has no hidden state
    and is `NO_TOKEN`: its keys and values are zeros, apart from biases.
    """

    at: str  # what stands before the names of its own tensors, such as "layers.61."
    embedding: Embedding  # the model's
    token_norm: Norm
    hidden_norm: Norm
    block: Block
    norm: Norm
    head: Head  # the model's

    @property
    def children(self) -> list[Layer]:
        """The layers that are its own: embedding and head are layers of the model."""
        return [self.token_norm, self.hidden_norm, self.block, self.norm]

    @property
    def hidden(self) -> int:
        """Columns of the residual stream."""
        return self.embedding.hidden

    @cached_property
    def joined(self) -> Axis:
        """The concatenated columns of both norms, which ranks divide."""
        return Columns("predictor_input", 2 * self.hidden)

    @cached_property
    def projection(self) -> MatrixParameter:
        """Makes one residual stream of both. DeepSeek's own checkpoints do not quantize it."""
        module = f"{self.at}eh_proj"
        source = Source(module, (self.hidden, 2 * self.hidden), f"{self.at}nextn.eh_proj", quantizable=False)
        return MatrixParameter((whole(source),), Split(self.joined))

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield self.projection

    @property
    def keeps(self) -> tuple[Cache, ...]:
        """The cache of the block, and the hidden states that are given."""
        return (*super().keeps, HiddenStates(self.hidden, KEPT_HIDDEN_STATES))

    def shape(self, part: RankPart) -> RankShape:
        """The sizes that its program is made for."""
        return rank_shape(part, self.embedding, numbered(self.keeps, part), extra_tokens=1)

    def forward(self, b: ProgramBuilder, part: RankPart) -> None:
        """Append its forward pass; the hidden states are given from outside, and its own are kept for there."""
        token, hidden = self.embedding.forward(b, part), b.given(HIDDEN_STATES, self.hidden)
        beside = b.norms_beside(
            [
                (token, self.token_norm.weight(part), self.token_norm.eps),
                (hidden, self.hidden_norm.weight(part), self.hidden_norm.eps),
            ]
        )
        mine = b.columns(beside, part.along(self.joined))
        residual = b.summed(b.linear_partial(mine, part.matrix(self.projection)))
        rotate_by_axes(b, part, [self.block])
        self.block.forward(b, part, residual, numbered(self.keeps, part).places[0])
        x = self.norm.forward(b, part, residual)
        self.head.forward(b, part, x)
        b.keep(HIDDEN_STATES, x)

    def scratch_columns(self, part: RankPart) -> int:
        """The scratch columns of the block, and of the input of the residual stream."""
        return self.block.scratch_columns(part) + 5 * self.hidden
