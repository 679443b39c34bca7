"""RMS norm and layer norm."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from numaserve.workers.layers.axes import Axis
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.parameters import Order, Parameter, Part, Source, VectorParameter, whole

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Residual, Tensor
    from numaserve.workers.program.handles import Vector
    from numaserve.workers.program.ops.rows import Pooling
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class Norm(Layer):
    """x / sqrt(mean(x²) + eps) * weight * factor (Zhang and Sennrich, 2019), over `size` columns."""

    module: str
    size: int
    eps: float
    gguf: str = ""
    plus_one: bool = False  # the checkpoint has the weight minus one
    factor: float = 1.0
    vector: str = "weight"  # the name of the weight below the module
    order: tuple[int, int, int] = (0, 1, 1)  # `pairs`, `run` and `pair_rounds` of the `Order` of its columns

    @cached_property
    def parameter(self) -> VectorParameter:
        """The declaration of the weight, [size]."""
        source = Source(f"{self.module}.{self.vector}", (self.size,), self.gguf and f"{self.gguf}.{self.vector}")
        pairs, run, rounds = self.order
        order = Order(1, self.size, pairs=pairs, run=run, pair_rounds=rounds)
        part = replace(whole(source), order=order) if pairs else whole(source)
        return VectorParameter((part,), added=1.0 if self.plus_one else 0.0, factor=self.factor)

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield self.parameter

    def in_gguf(self, pairs: bool, tensors: Collection[str]) -> Self:
        """llama.cpp's converter has added the one."""
        return replace(self, plus_one=False)

    def weight(self, part: RankPart) -> Vector:
        """The weight, whole on every rank."""
        return part.whole(self.parameter)

    def forward(self, b: ProgramBuilder, part: RankPart, x: Residual | Tensor) -> Operand:
        """The norm of `x` in bf16, of its shape."""
        return b.rms_norm(x, self.weight(part), self.eps)

    def pool(self, b: ProgramBuilder, part: RankPart, x: Residual, pooling: Pooling) -> Tensor:
        """Pool the norms of sequences."""
        return b.pool(x, pooling, self.weight(part), self.eps)


@dataclass(frozen=True)
class NoNorm(Layer):
    """The input of a sub-layer without a norm: the residual stream itself."""

    def forward(self, b: ProgramBuilder, part: RankPart, x: Residual | Tensor) -> Operand:
        """`x` in bf16, of its shape."""
        return b.rounded(x)

    def pool(self, b: ProgramBuilder, part: RankPart, x: Residual, pooling: Pooling) -> Tensor:
        """Pool the rows of sequences."""
        return b.pool(x, pooling)


@dataclass(frozen=True)
class LayerNorm(Layer):
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba et al., 2016), over `size` columns."""

    module: str
    size: int
    eps: float
    gguf: str = ""
    biased: bool = True
    rounds: int = 1  # columns lie round-robin in the checkpoint, see `in_groups`

    @cached_property
    def weight(self) -> VectorParameter:
        """The declaration of the weight, [size]."""
        return self._vector("weight")

    @cached_property
    def bias(self) -> VectorParameter | None:
        """The declaration of the bias, [size]."""
        return self._vector("bias") if self.biased else None

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.weight, self.bias)

    def forward(self, b: ProgramBuilder, part: RankPart, x: Residual | Tensor) -> Operand:
        """The norm of `x` in bf16, of its shape."""
        return b.layer_norm(x, part.whole(self.weight), part.vector(self.bias), self.eps)

    def pool(self, b: ProgramBuilder, part: RankPart, x: Residual, pooling: Pooling) -> Tensor:
        """Pool the norms of sequences, which take the place of the stream."""
        self.apply(b, part, x)
        return b.pool(x, pooling)

    def apply(self, b: ProgramBuilder, part: RankPart, residual: Residual) -> None:
        """Put the norm of the stream in its place."""
        b.normalize(residual, part.whole(self.weight), part.vector(self.bias), self.eps)

    def _vector(self, name: str) -> VectorParameter:
        source = Source(f"{self.module}.{name}", (self.size,), self.gguf and f"{self.gguf}.{name}")
        return VectorParameter((Part(source, Order(self.size, rounds=self.rounds)),))


AnyNorm = Norm | NoNorm | LayerNorm  # of the residual stream, before a sub-layer or the head


@dataclass(frozen=True)
class DividedNorm(Layer):
    """The norm of a vector that ranks divide along `axis`, `width` columns to a unit."""

    module: str
    axis: Axis
    width: int
    eps: float
    gguf: str = ""

    @property
    def columns(self) -> int:
        """The columns of all ranks."""
        return self.axis.count * self.width

    @cached_property
    def parameter(self) -> VectorParameter:
        """The declaration of the weight, with the rank's columns."""
        source = Source(f"{self.module}.weight", (self.columns,), self.gguf and f"{self.gguf}.weight")
        return VectorParameter((Part(source, Order(self.axis.count, self.width), self.axis, self.width),))

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield self.parameter

    def counted(self, part: RankPart) -> int:
        """The columns of the rank, the last ones, that no lower rank has too."""
        return len(part.own(self.axis)) * self.width
