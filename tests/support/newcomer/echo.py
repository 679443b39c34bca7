"""A family that the project does not have: every other layer passes on its input of the token before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.layers.axes import Axis, Columns
from numaserve.workers.layers.block import Block
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
    whole,
)
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import read_common
from numaserve.workers.models.family import Family
from numaserve.workers.models.spec import ModelConfig

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Partial
    from numaserve.workers.program.caches import CacheIndex
    from numaserve.workers.program.recording.builder import ProgramBuilder

TAPS = 2
_EPS = 1e8  # far above all squares: the norm only scales, so that ranks need not agree on it


@dataclass(frozen=True)
class Echo(Mixer):
    """A convolution over two tokens, whose weights are those of the checkpoint, between two projections."""

    at: str
    hidden: int
    inner: int

    @cached_property
    def columns(self) -> Axis:
        """The columns that ranks divide."""
        return Columns("echo", self.inner)

    @property
    def cache(self) -> State:
        """See `Mixer`."""
        return State(TAPS - 1, self.columns)

    @cached_property
    def into(self) -> MatrixParameter:
        """The projection to the columns."""
        source = Source(f"{self.at}mixer.in_proj", (self.inner, self.hidden))
        return MatrixParameter((Part(source, Order(self.inner), self.columns),))

    @cached_property
    def taps(self) -> VectorParameter:
        """The weights of each column, the older token first."""
        source = Source(f"{self.at}mixer.conv.weight", (self.inner * TAPS,))
        return VectorParameter((Part(source, Order(self.inner, TAPS), self.columns, TAPS),))

    @cached_property
    def out(self) -> MatrixParameter:
        """The projection back."""
        source = Source(f"{self.at}mixer.out_proj", (self.hidden, self.inner))
        return MatrixParameter((whole(source),), Split(self.columns))

    @cached_property
    def scale(self) -> VectorParameter:
        """The weight of the norm that rounds the columns to bf16."""
        source = Source(f"{self.at}mixer.norm.weight", (self.inner,))
        return VectorParameter((Part(source, Order(self.inner), self.columns),), factor=_EPS**0.5)

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.into, self.taps, self.scale, self.out)

    def scratch_columns(self, part: RankPart) -> int:
        """See `Layer`."""
        return 3 * len(part.along(self.columns))

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand, place: CacheIndex) -> Partial:
        """See `Mixer`."""
        inner = b.linear(x, part.matrix(self.into))
        echoed = b.causal_conv(inner, part.whole(self.taps), taps=TAPS, state=place)
        return b.linear_partial(b.rms_norm(echoed, part.whole(self.scale), _EPS), part.matrix(self.out))


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json."""
    common = read_common(fields)
    inner = fields.integer("inner_size", 1, 2**17)

    def block(layer: int) -> Block:
        echo = Echo(f"layers.{layer}.", common.hidden, inner)
        return common.block(layer, common.attention(layer) if layer % 2 else echo)

    return common.model("echo", architecture, block)


FAMILY = Family(name="echo", architectures=("EchoForCausalLM",), configure=configure)
