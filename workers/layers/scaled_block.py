"""Blocks that scale the residual stream, with inputs of their own or with experts next to the MLP (Gemma 4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.layer_inputs import InputGate
from numaserve.workers.layers.norm import Norm
from numaserve.workers.layers.parameters import Parameter, Source, VectorParameter, whole

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Residual, Tensor
    from numaserve.workers.program.handles import Vector
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class ExpertsBeside(Layer):
    """Experts next to an MLP: both read the residual stream, through norms of their own, and so does the router."""

    norm: Norm
    router_norm: Norm
    experts: Experts
    post_mlp_norm: Norm
    post_norm: Norm

    def forward(self, b: ProgramBuilder, part: RankPart, residual: Residual, total: Residual) -> None:
        """Add the norm of the experts' sum to `total`."""
        x, router_x = (norm.forward(b, part, residual) for norm in (self.norm, self.router_norm))
        partial = self.experts.forward(b, part, x, router_x)
        b.add_all_reduce(total, partial, eps=self.post_norm.eps, post_norm=self.post_norm.weight(part))


@dataclass(frozen=True)
class ScaledBlock(Block):
    """A block after which the residual stream is multiplied by a number of the checkpoint, `scalar`."""

    scalar: Source | None = None
    beside: ExpertsBeside | None = None
    gate: InputGate | None = None

    @cached_property
    def scale(self) -> VectorParameter | None:
        """The declaration of the number."""
        return None if self.scalar is None else VectorParameter((whole(self.scalar),))

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield self.scale

    def complete(self, b: ProgramBuilder, part: RankPart, residual: Residual, inputs: Tensor | None = None) -> None:
        """See `Block`."""
        scale = part.vector(self.scale)
        if self.gate is None or inputs is None:
            self.feed(b, part, residual, scale)
        else:
            self.feed(b, part, residual)
            self.gate.forward(b, part, residual, inputs, scale)

    def feed(self, b: ProgramBuilder, part: RankPart, residual: Residual, scale: Vector | None = None) -> None:
        """See `Block`."""
        beside, after = self.beside, self.post_mlp_norm
        if beside is None or after is None or self.mlp is None or self.mlp_norm is None:
            super().feed(b, part, residual, scale)
            return
        partial, norm = self.mlp.forward(b, part, self.mlp_norm.forward(b, part, residual)), beside.post_mlp_norm
        total = b.summed(partial, norm.weight(part), norm.eps)
        beside.forward(b, part, residual, total)
        b.add_norm(residual, total, after.weight(part), after.eps, scale=scale)
