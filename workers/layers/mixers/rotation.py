"""The rotation of queries and keys by their positions (Su et al., 2021)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from numaserve.workers.layers.layer import Layer
from numaserve.workers.program.rope import RopeConfig

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class Rotation(Layer):
    """The rotary embedding of an attention layer, and the order of rotated dimensions in the checkpoint."""

    rope: RopeConfig
    pairs: bool = False  # rotated dimensions lie in pairs in the checkpoint, not in halves
    # Parts of a head that are rotated by a coordinate each, in halves in the checkpoint. Here the first halves of all
    # parts come first.
    parts: int = 1
    alternating: bool = False  # pairs that are rotated by one of two coordinates alternate in the checkpoint

    def order(self, dim: int) -> tuple[int, int, int]:
        """Return `pairs`, `run` and `pair_rounds` of the `Order` of a head's dimensions."""
        if self.parts > 1:
            return dim, dim // (2 * self.parts), 1
        return (dim, 1, dim // 4 if self.alternating else 1) if self.pairs else (0, 1, 1)

    @property
    def ropes(self) -> frozenset[RopeConfig]:
        """See `Layer`."""
        return frozenset((self.rope,))

    def in_gguf(self, pairs: bool, tensors: Collection[str]) -> Self:
        """See `Layer`."""
        return replace(self, pairs=pairs, alternating=False)


def rotate_by_axes(b: ProgramBuilder, part: RankPart, layers: Sequence[Layer]) -> None:
    """Let layers whose pairs are rotated by coordinates, such as those in an image, find them."""
    ropes = dict.fromkeys(rope for layer in layers for rope in layer.ropes)
    for rope in ropes:
        if rope.axes:
            b.rotate_by(part.rope(rope), rope.axes)
