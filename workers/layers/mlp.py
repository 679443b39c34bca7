"""MLPs with gates (Shazeer, 2020) and without."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from numaserve.workers.layers.axes import Axis, Columns
from numaserve.workers.layers.layer import FeedForward
from numaserve.workers.layers.parameters import (
    MatrixParameter,
    Order,
    Parameter,
    Part,
    Rule,
    Source,
    Split,
    VectorParameter,
    stacked,
    vector,
    whole,
)
from numaserve.workers.program.ops.products import Activation

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Partial
    from numaserve.workers.program.handles import Vector
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class MlpNames:
    """The modules of a gated MLP. Where `up` is `gate`, that tensor holds the rows of gate above those of up, with
    `up_first` below those of up, or with `interleaved` a row of either in turn."""

    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    interleaved: bool = False
    up_first: bool = False

    def below(self, module: str) -> MlpNames:
        """Return the names within `module`."""
        gate, up, down = (f"{module}.{each}" for each in (self.gate, self.up, self.down))
        return replace(self, gate=gate, up=up, down=down)


_GGUF_NAMES = MlpNames("ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class _HiddenColumns(FeedForward):
    """A hidden vector of `intermediate` columns, which ranks divide, and the projection `down` of it. `at` is what its
    modules' names begin with."""

    at: str
    hidden: int
    intermediate: int
    activation: Activation = "silu"
    names: MlpNames = MlpNames()
    gguf: MlpNames = _GGUF_NAMES
    axis_name: str = "intermediate"
    biased: bool = False  # down has a bias, and without a gate up has one too
    rule: Rule = "published"  # of the format of its matrices

    @cached_property
    def columns(self) -> Axis:
        """The columns of the hidden vector, which ranks divide."""
        return Columns(self.axis_name, self.intermediate)

    @cached_property
    def down(self) -> MatrixParameter:
        """The output projection, [hidden, the rank's columns]."""
        return MatrixParameter((whole(self._down),), Split(self.columns), rule=self.rule)

    @cached_property
    def down_bias(self) -> VectorParameter | None:
        """The bias of `down`, whole on every rank and added to the sum over the ranks."""
        return vector(self._down.bias if self.biased else None)

    def bias(self, part: RankPart) -> Vector | None:
        """See `FeedForward`."""
        return part.vector(self.down_bias)

    @cached_property
    def _down(self) -> Source:
        return Source(self.at + self.names.down, (self.hidden, self.intermediate), self.at + self.gguf.down)


@dataclass(frozen=True)
class Mlp(_HiddenColumns):
    """(activation(gate(x)) * up(x)) through down."""

    @cached_property
    def gate_up(self) -> MatrixParameter:
        """Gate and up in panels of 16 rows, in turn; padded to whole tiles of the MLP's columns."""
        parts = gate_up_parts(self.at, self.names, self.gguf, self.columns, self.hidden)
        return MatrixParameter(parts, layout="panels", rule=self.rule)

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.gate_up, self.down, self.down_bias)

    def in_gguf(self, pairs: bool, tensors: Collection[str]) -> Self:
        """llama.cpp's converters take gate and up apart for some families."""
        gate = f"{self.at.replace('layers.', 'blk.', 1)}{self.gguf.gate}.weight"
        is_apart = self.names.gate == self.names.up and gate in tensors
        return replace(self, names=MlpNames()) if is_apart else self

    def scratch_columns(self, part: RankPart) -> int:
        """Columns of gate, of up and of their product."""
        return 3 * len(part.along(self.columns))

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand) -> Partial:
        """See `FeedForward`."""
        return b.gated_mlp(x, part.matrix(self.gate_up), part.matrix(self.down), self.activation)


@dataclass(frozen=True)
class PlainMlp(_HiddenColumns):
    """activation(up(x)) through down: an MLP without a gate."""

    activation: Activation = "relu2"
    inputs: int = 0  # columns of x; 0: as many as of the result

    @cached_property
    def up(self) -> MatrixParameter:
        """The rank's rows of up."""
        return MatrixParameter((self._up,), rule=self.rule)

    @cached_property
    def up_bias(self) -> VectorParameter | None:
        """The bias of `up`, with the rank's columns."""
        return VectorParameter((replace(self._up, source=self._up.source.bias),)) if self.biased else None

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.up, self.up_bias, self.down, self.down_bias)

    def scratch_columns(self, part: RankPart) -> int:
        """Columns of up."""
        return len(part.along(self.columns))

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand) -> Partial:
        """See `FeedForward`."""
        up, down = part.matrix(self.up), part.matrix(self.down)
        return b.plain_mlp(x, up, down, self.activation, part.vector(self.up_bias))

    @cached_property
    def _up(self) -> Part:
        return up_part(self.at, self.names, self.gguf, self.columns, self.inputs or self.hidden)


def up_part(at: str, names: MlpNames, gguf: MlpNames, axis: Axis, hidden: int) -> Part:
    """The rows of up where there is no gate."""
    source = Source(at + names.up, (axis.count, hidden), at + gguf.up)
    return Part(source, Order(axis.count), axis)


def gate_up_parts(at: str, names: MlpNames, gguf: MlpNames, axis: Axis, hidden: int) -> tuple[Part, Part]:
    """The rows of gate, and those of up."""
    count, is_fused = axis.count, names.gate == names.up
    # llama.cpp calls what is fused "up".
    of_gate = at + names.gate, count, at + (gguf.up if is_fused else gguf.gate)
    of_up = at + names.up, count, at + gguf.up
    if names.up_first:
        (up, after), (gate, first) = stacked(of_up, of_gate, columns=hidden)
    else:
        (gate, first), (up, after) = stacked(of_gate, of_up, columns=hidden)
    step = 1
    if names.interleaved:
        step, after = 2, 1
    return Part(gate, Order(count, step, first, count=1), axis), Part(up, Order(count, step, after, count=1), axis)
