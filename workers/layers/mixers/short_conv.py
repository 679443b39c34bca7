"""Short convolutions with gates (Liquid AI, 2025): a causal convolution between two products of elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.layers.axes import Axis, Columns
from numaserve.workers.layers.caches import State
from numaserve.workers.layers.layer import Mixer
from numaserve.workers.layers.parameters import (
    MatrixParameter,
    Order,
    Parameter,
    Part,
    Source,
    Split,
    VectorParameter,
    vector,
    whole,
)

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Partial
    from numaserve.workers.program.caches import CacheIndex
    from numaserve.workers.program.handles import Vector
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class ShortConv(Mixer):
    """out_proj(C * conv(B * x)), where in_proj gives the rows of B, C and x. The convolution has no activation.

    `at` is what its modules' names begin with, such as "layers.3.".
    """

    at: str
    hidden: int
    taps: int  # tokens of the convolution
    biases: bool = False  # of both projections and of the convolution

    @cached_property
    def columns(self) -> Axis:
        """The columns of the convolution, which ranks divide."""
        return Columns("short_conv", self.hidden)

    @property
    def cache(self) -> State:
        """See `Mixer`."""
        return State(self.taps - 1, self.columns)

    @cached_property
    def into(self) -> MatrixParameter:
        """One matrix with the rank's rows of B, of C and of x."""
        return MatrixParameter(self._bcx)

    @cached_property
    def into_bias(self) -> VectorParameter | None:
        """The bias of `into`, in the order of its rows."""
        if not self.biases:
            return None
        return VectorParameter(tuple(replace(part, source=part.source.bias) for part in self._bcx))

    @cached_property
    def convolution(self) -> VectorParameter:
        """The weights of each column."""
        shape = (self.hidden, 1, self.taps)
        source = Source(f"{self.at}conv.conv.weight", shape, f"{self.at}shortconv.conv.weight")
        return VectorParameter((self._of_each_column(source),))

    @cached_property
    def convolution_bias(self) -> VectorParameter | None:
        """The bias of each column."""
        if not self.biases:
            return None
        source = Source(f"{self.at}conv.conv.bias", (self.hidden,), f"{self.at}shortconv.conv.bias")
        return VectorParameter((self._of_each_column(source),))

    @cached_property
    def out(self) -> MatrixParameter:
        """The output projection, with the rank's columns."""
        return MatrixParameter((whole(self._output),), Split(self.columns))

    @cached_property
    def out_bias(self) -> VectorParameter | None:
        """The bias of `out`, whole on every rank and added to the sum over the ranks."""
        return vector(self._output.bias if self.biases else None)

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.into, self.into_bias, self.convolution, self.convolution_bias, self.out, self.out_bias)

    def scratch_columns(self, part: RankPart) -> int:
        """B, C, x, both products and the result of the convolution."""
        return 6 * len(part.along(self.columns))

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand, place: CacheIndex) -> Partial:
        """See `Mixer`."""
        own = len(part.along(self.columns))
        before, after, values = b.split(b.linear(x, part.matrix(self.into), part.vector(self.into_bias)), own, own)
        convolved = b.causal_conv(
            b.multiply(before, values),
            part.whole(self.convolution),
            taps=self.taps,
            state=place,
            bias=part.vector(self.convolution_bias),
        )
        return b.linear_partial(b.multiply_rounded(convolved, after), part.matrix(self.out))

    def bias(self, part: RankPart) -> Vector | None:
        """See `Mixer`."""
        return part.vector(self.out_bias)

    @cached_property
    def _bcx(self) -> tuple[Part, ...]:
        source = Source(f"{self.at}conv.in_proj", (3 * self.hidden, self.hidden), f"{self.at}shortconv.in_proj")
        firsts = range(0, 3 * self.hidden, self.hidden)
        return tuple(Part(source, Order(self.hidden, first=first), self.columns) for first in firsts)

    @cached_property
    def _output(self) -> Source:
        return Source(f"{self.at}conv.out_proj", (self.hidden, self.hidden), f"{self.at}shortconv.out_proj")

    def _of_each_column(self, source: Source) -> Part:
        return Part(source, Order(self.hidden), self.columns)
