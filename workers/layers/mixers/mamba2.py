"""The state space of Mamba-2 (Dao and Gu, 2024): a matrix for each head, to which every token adds its input."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from numaserve.workers.layers.axes import Axis, KvHeads, QueryHeads
from numaserve.workers.layers.caches import DeltaState
from numaserve.workers.layers.layer import Mixer
from numaserve.workers.layers.parameters import (
    MatrixParameter,
    Order,
    Parameter,
    Part,
    Source,
    Split,
    VectorParameter,
    whole,
)
from numaserve.workers.program.handles import MATRIX_PAD

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Partial, Tensor
    from numaserve.workers.program.caches import CacheIndex
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class Mamba2(Mixer):
    """A state space over a short convolution of x, B and C. Its results are gated by z, then normed group by group.

    Consecutive heads share B and C, and a norm. `at` is what its modules' names begin with, such as "layers.3.".
    """

    at: str
    module: str
    hidden: int
    groups: int
    heads: int
    state_dim: int
    head_dim: int
    taps: int  # tokens of the convolution
    eps: float
    least_step: float
    most_step: float
    convolution_has_bias: bool = True
    decay_is_log: bool = True  # the checkpoint has the logarithm of minus the decay

    @cached_property
    def shared(self) -> Axis:
        """The groups of heads that share B and C."""
        return KvHeads("space_groups", self.groups, self.heads)

    @cached_property
    def own(self) -> Axis:
        """The heads, which ranks divide."""
        return QueryHeads("space_heads", self.heads, self.groups)

    @cached_property
    def cache(self) -> DeltaState:
        """See `Mixer`."""
        return DeltaState(self.shared, self.own, self.state_dim, self.head_dim, self.taps - 1, gates=1)

    @cached_property
    def into(self) -> MatrixParameter:
        """One matrix with the rank's rows of C, B, x and z."""
        z = Part(self._input, Order(self.heads, self.head_dim), self.own, self.head_dim)
        return MatrixParameter((*self._convolved(self._input, self._inner), z))

    @cached_property
    def steps(self) -> MatrixParameter:
        """The rows of dt: bf16, because few bytes decide how fast states decay."""
        order = Order(self.heads, first=2 * (self._inner + self._shared))
        return MatrixParameter((Part(self._input, order, self.own),), rule="bf16")

    @cached_property
    def convolution(self) -> VectorParameter:
        """The weights of each column of C, B and x."""
        shape = (self._inner + 2 * self._shared, 1, self.taps)
        source = Source(f"{self._inside}conv1d.weight", shape, f"{self.at}ssm_conv1d.weight")
        return VectorParameter(self._convolved(source, 0))

    @cached_property
    def convolution_bias(self) -> VectorParameter | None:
        """The bias of these columns."""
        if not self.convolution_has_bias:
            return None
        shape = (self._inner + 2 * self._shared,)
        return VectorParameter(
            self._convolved(Source(f"{self._inside}conv1d.bias", shape, f"{self.at}ssm_conv1d.bias"), 0)
        )

    @cached_property
    def decay(self) -> VectorParameter:
        """The factor, below zero, of each head's logarithm of decays."""
        factor = -1.0 if self.decay_is_log else 1.0
        return VectorParameter((self._of_each_head("A_log", "ssm_a"),), factor=factor, is_log=self.decay_is_log)

    @cached_property
    def step_bias(self) -> VectorParameter:
        """The bias of each head's dt."""
        return VectorParameter((self._of_each_head("dt_bias", "ssm_dt.bias"),))

    @cached_property
    def skip(self) -> VectorParameter:
        """The factor with which each head's x is added to its results."""
        return VectorParameter((self._of_each_head("D", "ssm_d"),))

    @cached_property
    def norms(self) -> tuple[VectorParameter, ...]:
        """The weights of the norm of each group: the rank's columns of the group, which may be none."""
        source = Source(f"{self._inside}norm.weight", (self._inner,), f"{self.at}ssm_norm.weight")
        each, dim = self.heads // self.groups, self.head_dim
        orders = [Order(each, dim, first=group * each * dim) for group in range(self.groups)]
        return tuple(
            VectorParameter((Part(source, order, self.own, dim, at=group * each),))
            for group, order in enumerate(orders)
        )

    @cached_property
    def o(self) -> MatrixParameter:
        """The output projection, with the columns of the rank's heads."""
        source = Source(f"{self._inside}out_proj", (self.hidden, self._inner), f"{self.at}ssm_out")
        return MatrixParameter((whole(source),), Split(self.own, self.head_dim))

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.into, self.steps, self.convolution, self.convolution_bias, self.decay, self.step_bias)
        yield self.skip
        yield from self.norms
        yield self.o

    def in_gguf(self, pairs: bool, tensors: Collection[str]) -> Self:
        """llama.cpp's converters take the logarithm away. Files do not state whether the convolution has a bias."""
        bias = f"{self.at.replace('layers.', 'blk.', 1)}ssm_conv1d.bias"
        return replace(self, decay_is_log=False, convolution_has_bias=bias in tensors)

    def scratch_columns(self, part: RankPart) -> int:
        """C, B and x before and after the convolution, z, dt, results, and these gated and normed."""
        heads = self.cache.heads(part)
        return 2 * heads.convolved + 4 * heads.values * self.head_dim + heads.values

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand, place: CacheIndex) -> Partial:
        """See `Mixer`."""
        heads = self.cache.heads(part)
        made, steps = b.linear(x, part.matrix(self.into)), b.linear(x, part.matrix(self.steps))
        _, z = b.split(made, heads.convolved)
        convolved = b.causal_conv(
            made,
            part.whole(self.convolution),
            taps=self.taps,
            state=place,
            bias=part.vector(self.convolution_bias),
            activation="silu",
        )
        out = b.state_space(
            convolved,
            steps,
            decay=part.whole(self.decay),
            step_bias=part.whole(self.step_bias),
            skip=part.whole(self.skip),
            steps=(self.least_step, self.most_step),
            heads=heads,
            state=place,
            offset=self.cache.matrices_at(part),
        )
        normed = self._normed(b, part, b.multiply(out, z, activation="silu"))
        return b.linear_partial(normed, part.matrix(self.o))

    def _normed(self, b: ProgramBuilder, part: RankPart, x: Tensor) -> Operand:
        """Norm groups that are whole on a rank there, in a single pass, and let ranks exchange sums of others. Either
        way the bits are the same: the sums of ranks without a part of a group are zeros."""
        weights, each = [part.whole(norm) for norm in self.norms], self.heads // self.groups
        columns = each * self.head_dim
        if columns % MATRIX_PAD == 0 and all(bound % each == 0 for bound in part.partition.bounds(self.own)):
            return b.group_norm(x, [weight for weight in weights if weight.size], self.eps)
        counted, of_all = [weight.size for weight in weights], [columns] * self.groups
        b.divided_norm(x, weights, counted=counted, columns=of_all, eps=self.eps)
        return b.rounded(x)

    @property
    def _inside(self) -> str:
        return f"{self.at}{self.module}."

    @property
    def _inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def _shared(self) -> int:
        return self.groups * self.state_dim

    @cached_property
    def _input(self) -> Source:
        rows = 2 * (self._inner + self._shared) + self.heads
        return Source(f"{self._inside}in_proj", (rows, self.hidden), f"{self.at}ssm_in")

    def _convolved(self, source: Source, first: int) -> tuple[Part, ...]:
        """The rows of C, of B and of x in a tensor that has, from row `first` on, those of x, of B and of C."""
        b, c = first + self._inner, first + self._inner + self._shared
        shared = (Part(source, Order(self.groups, self.state_dim, at), self.shared, self.state_dim) for at in (c, b))
        return (*shared, Part(source, Order(self.heads, self.head_dim, first), self.own, self.head_dim))

    def _of_each_head(self, name: str, gguf: str) -> Part:
        return Part(Source(self._inside + name, (self.heads,), self.at + gguf), Order(self.heads), self.own)
