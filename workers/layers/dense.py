"""Dense layers of pooled sequences: heads of classifiers, and the Dense modules of sentence-transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.norm import LayerNorm
from numaserve.workers.layers.parameters import MatrixParameter, Parameter, Source, VectorParameter, vector, whole
from numaserve.workers.program.ops.products import Activation

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Tensor
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class Dense(Layer):
    """activation(weight · x + bias), and its layer norm if there is a `norm`.

    It is whole on every rank: dividing it would save a few percent for the shortest texts, and cost each of them an
    exchange. The weight is bf16 in every format of the model.
    """

    module: str
    inputs: int
    outputs: int
    activation: Activation = "none"
    biased: bool = True
    norm: LayerNorm | None = None
    gguf: str = ""

    @cached_property
    def weight(self) -> MatrixParameter:
        """The declaration of the weight, [outputs, inputs]."""
        return MatrixParameter((whole(self._source),), rule="bf16")

    @cached_property
    def bias(self) -> VectorParameter | None:
        """The declaration of the bias, [outputs]."""
        return vector(self._source.bias if self.biased else None)

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.weight, self.bias)

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand) -> Tensor:
        """The layer without its norm: fp32 [rows, outputs]."""
        y = b.linear(x, part.matrix(self.weight), part.vector(self.bias))
        return y if self.activation == "none" else b.activated(y, self.activation)

    def normed(self, b: ProgramBuilder, part: RankPart, x: Operand) -> Operand:
        """The layer, of which `norm` is a part: bf16 [rows, outputs]."""
        y = self.forward(b, part, x)
        return b.rounded(y) if self.norm is None else self.norm.forward(b, part, y)

    @cached_property
    def _source(self) -> Source:
        return Source(self.module, (self.outputs, self.inputs), self.gguf, quantizable=False)


def pooled_through(layers: Sequence[Dense], b: ProgramBuilder, part: RankPart, vectors: Tensor) -> Tensor:
    """Return the `vectors` of pooled sequences, fp32 [sequences, columns], after all layers. The last has no norm."""
    if not layers:
        return vectors
    *others, last = layers
    x = b.rounded(vectors)
    for layer in others:
        x = layer.normed(b, part, x)
    return last.forward(b, part, x)
