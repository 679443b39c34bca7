"""A part of a model that has a Program of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.recording.builder import ProgramBuilder
    from numaserve.workers.program.setup import RankShape


class Forward(Protocol):
    """A model, or a part of a model that has a Program of its own."""

    def shape(self, part: RankPart) -> RankShape:
        """Return the sizes that the Program is made for."""

    def forward(self, b: ProgramBuilder, part: RankPart) -> None:
        """Append the forward pass to a Program."""
