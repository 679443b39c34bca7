"""Inputs that each layer has besides the residual stream: per-layer embeddings (Gemma 3n and 4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.layers.axes import Axis, Columns, Units
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.norm import Norm
from numaserve.workers.layers.parameters import MatrixParameter, Order, Parameter, Part, Source, Split, whole
from numaserve.workers.program.ops.products import Activation

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Residual, Tensor
    from numaserve.workers.program.handles import Vector
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class LayerInputs(Layer):
    """The inputs of all layers, `width` columns each: a norm of a projection of the token's embedding, and the token's
    row of a table times `scale`.

    Ranks divide the layers, and send each other their columns. The table is as large as the rest of a small model. The
    alternative is to divide its rows, as those of the embedding: then each rank sends all columns.

    Rows of images have the row of the token `of_images`.
    """

    vocabulary: int
    hidden: int
    layers: int
    width: int
    norm: Norm
    scale: float
    of_images: int = 0

    @cached_property
    def axis(self) -> Axis:
        """The layers, which ranks divide."""
        return Units("layer_inputs", self.layers)

    @property
    def columns(self) -> int:
        """The columns of all layers."""
        return self.layers * self.width

    @cached_property
    def table(self) -> MatrixParameter:
        """A row for each token, with the rank's columns, bf16 always."""
        shape = (self.vocabulary, self.columns)
        source = Source("embed_tokens_per_layer", shape, "per_layer_token_embd", quantizable=False)
        return MatrixParameter((whole(source),), Split(self.axis, self.width), rule="bf16")

    @cached_property
    def projection(self) -> MatrixParameter:
        """The projection of embeddings, with the rows of the rank's columns."""
        source = Source("per_layer_model_projection", (self.columns, self.hidden), "per_layer_model_proj")
        return MatrixParameter((Part(source, Order(self.layers, self.width), self.axis, self.width),))

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.table, self.projection)

    def forward(self, b: ProgramBuilder, part: RankPart, residual: Residual) -> Tensor:
        """The inputs, fp32 [tokens, layers * width], whole on every rank; `residual` holds embeddings."""
        return b.layer_inputs(
            b.rounded(residual),
            part.matrix(self.projection),
            part.matrix(self.table),
            self.norm.weight(part),
            eps=self.norm.eps,
            scale=self.scale,
            bounds=tuple(self.width * bound for bound in part.partition.bounds(self.axis)),
        )

    def scratch_columns(self, part: RankPart) -> int:
        """All columns, and the projection of the rank's."""
        return self.columns + self.message_columns(part)

    def message_columns(self, part: RankPart) -> int:
        """The columns of the rank's layers."""
        return len(part.along(self.axis)) * self.width


@dataclass(frozen=True)
class InputGate(Layer):
    """The use of a layer's inputs: norm(up(activation(gate(x)) * inputs)) is added to the residual stream x.

    `at` is what its modules' names begin with; `index` is the number of the layer.
    """

    at: str
    hidden: int
    index: int
    width: int
    norm: Norm
    activation: Activation

    @cached_property
    def axis(self) -> Axis:
        """The columns of the layer's inputs, which ranks divide here."""
        return Columns("input_gate", self.width)

    @cached_property
    def gate(self) -> MatrixParameter:
        """The gate, [the rank's columns, hidden]."""
        source = Source(f"{self.at}per_layer_input_gate", (self.width, self.hidden), f"{self.at}inp_gate")
        return MatrixParameter((Part(source, Order(self.width), self.axis),))

    @cached_property
    def up(self) -> MatrixParameter:
        """The projection back, [hidden, the rank's columns]."""
        source = Source(f"{self.at}per_layer_projection", (self.hidden, self.width), f"{self.at}proj")
        return MatrixParameter((whole(source),), Split(self.axis))

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.gate, self.up)

    def scratch_columns(self, part: RankPart) -> int:
        """Columns of the gate, of the product and of the stream in bf16."""
        return 2 * len(part.along(self.axis)) + self.hidden

    def forward(
        self, b: ProgramBuilder, part: RankPart, residual: Residual, inputs: Tensor, scale: Vector | None
    ) -> None:
        """Add its result to the residual stream, which is multiplied by `scale` after that. `inputs` are those of all
        layers."""
        mine = part.along(self.axis)
        gate = b.linear(b.rounded(residual), part.matrix(self.gate))
        _, own, _ = b.split(inputs, self.index * self.width + mine.start, len(mine))
        partial = b.linear_partial(b.multiply_rounded(own, gate, self.activation), part.matrix(self.up))
        b.add_all_reduce(residual, partial, eps=self.norm.eps, post_norm=self.norm.weight(part), scale=scale)
