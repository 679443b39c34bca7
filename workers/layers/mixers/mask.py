"""The scores of attention: the tokens that a query sees, and what changes their weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.layers.axes import Axis
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.parameters import Order, Parameter, Part, Source, VectorParameter

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Tensor
    from numaserve.workers.program.caches import CacheIndex
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class Sinks(Layer):
    """A logit of each query head that takes part in the softmax without a value."""

    name: str
    heads: Axis
    gguf: str

    @cached_property
    def parameter(self) -> VectorParameter:
        """The logits of the rank's query heads."""
        source = Source(self.name, (self.heads.count,), self.gguf)
        return VectorParameter((Part(source, Order(self.heads.count), self.heads),))

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield self.parameter


@dataclass(frozen=True)
class Mask(Layer):
    """A causal or bidirectional mask, with a cap on scores and sinks where there are any."""

    # Tokens that a query sees, itself included, or on either side if the mask is bidirectional; None: all.
    window: int | None = None
    softcap: float | None = None
    sinks: Sinks | None = None
    chunked: bool = False  # a query sees the tokens of its chunk of `window` tokens
    bidirectional: bool = False
    images: bool = False  # a token of an image sees later tokens of the same image, too

    def attend(
        self, b: ProgramBuilder, part: RankPart, q: Tensor, scale: float, cache: CacheIndex, *, value_scale: float = 1.0
    ) -> Operand:
        """Attend to the tokens of `cache` with queries, bf16 [tokens, query heads * padded head_dim].

        Returns the values of the heads times `value_scale`, bf16 [tokens, query heads * dimensions of a value].
        """
        sinks = None if self.sinks is None else part.vector(self.sinks.parameter)
        return b.attention(q, cache=cache, scale=scale, value_scale=value_scale, softcap=self.softcap, sinks=sinks)
