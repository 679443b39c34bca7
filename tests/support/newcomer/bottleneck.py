"""A family that the project does not have: Llama whose MLPs read fewer columns than the residual stream has.

It is what somebody writes who adds a family with a layer of its own: this file and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.layers.axes import Axis, Columns
from numaserve.workers.layers.block import Block
from numaserve.workers.layers.layer import FeedForward
from numaserve.workers.layers.mlp import MlpNames, gate_up_parts
from numaserve.workers.layers.parameters import MatrixParameter, Parameter, Source, Split, VectorParameter, whole
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import read_common
from numaserve.workers.models.family import Family, GgufForm, Values
from numaserve.workers.models.spec import ModelConfig

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Partial
    from numaserve.workers.program.recording.builder import ProgramBuilder

_GGUF = MlpNames("ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class Bottleneck(FeedForward):
    """A gated MLP over the norm of `narrow` columns, which are made of the hidden ones."""

    at: str
    hidden: int
    narrow: int
    intermediate: int
    eps: float

    @cached_property
    def columns(self) -> Axis:
        """Those of the MLP."""
        return Columns("intermediate", self.intermediate)

    @cached_property
    def narrowing(self) -> MatrixParameter:
        """Whole on every rank."""
        return MatrixParameter((whole(Source(f"{self.at}mlp.narrow_proj", (self.narrow, self.hidden), self._gguf)),))

    @cached_property
    def norm(self) -> VectorParameter:
        """Of the narrow columns."""
        source = Source(f"{self.at}mlp.narrow_norm.weight", (self.narrow,), f"{self._gguf}_norm.weight")
        return VectorParameter((whole(source),))

    @cached_property
    def gate_up(self) -> MatrixParameter:
        """Of the narrow columns."""
        return MatrixParameter(gate_up_parts(self.at, MlpNames(), _GGUF, self.columns, self.narrow), layout="panels")

    @cached_property
    def down(self) -> MatrixParameter:
        """Back to the hidden ones."""
        source = Source(f"{self.at}mlp.down_proj", (self.hidden, self.intermediate), f"{self.at}ffn_down")
        return MatrixParameter((whole(source),), Split(self.columns))

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.narrowing, self.norm, self.gate_up, self.down)

    def scratch_columns(self, part: RankPart) -> int:
        """See `Layer`."""
        return 2 * self.narrow + 3 * len(part.along(self.columns))

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand) -> Partial:
        """See `FeedForward`."""
        narrow = b.rms_norm(b.linear(x, part.matrix(self.narrowing)), part.whole(self.norm), self.eps)
        return b.gated_mlp(narrow, part.matrix(self.gate_up), part.matrix(self.down), "silu")

    @property
    def _gguf(self) -> str:
        return f"{self.at}ffn_narrow"


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json."""
    common = read_common(fields)
    narrow = fields.integer("narrow_size", 1, 2**17)

    def block(layer: int) -> Block:
        mlp = Bottleneck(f"layers.{layer}.", common.hidden, narrow, common.intermediate, common.eps)
        return common.block(layer, common.attention(layer), mlp)

    return common.model("bottleneck", architecture, block)


def _values(metadata: Fields, values: Values) -> Values:
    return {"narrow_size": metadata.values.get("bottleneck.narrow_length")}


FAMILY = Family(
    name="bottleneck",
    architectures=("BottleneckForCausalLM",),
    configure=configure,
    gguf=GgufForm("bottleneck", values=_values),
)
