"""The vision tower of Llama 4, whose tiles have one size, and a class token after their patches.

The source is transformers 5.24, models/llama4/modeling_llama4.py. Patches are in the order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numaserve.workers.layers.grid_tower import ROTARY
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.mlp import PlainMlp
from numaserve.workers.layers.norm import LayerNorm
from numaserve.workers.layers.vision import FEATURES, PATCHES, TileTower

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.recording.builder import ProgramBuilder
    from numaserve.workers.program.rope import RopeConfig


@dataclass(frozen=True)
class ClassTower(TileTower):
    """A tower whose patches are rotated by their columns and rows, and whose squares go through an MLP before the
    connector. The class token is not rotated, and becomes no feature."""

    first_norm: LayerNorm  # of the embeddings, in their place
    mlp: PlainMlp  # of a square, with the activation once more after it
    rope: RopeConfig  # of a coordinate, for half of the pairs of a head

    @property
    def children(self) -> list[Layer]:
        """See `Layer`: in the order of the forward pass."""
        return [self.embedding, self.first_norm, *self.blocks, self.norm, self.mlp, self.connector]

    @property
    def patches(self) -> int:
        """See `Tower`: the class token is one more."""
        return self.side**2 + 1

    @property
    def pairs_in_gguf(self) -> bool:
        """See `Tower`: as in other checkpoints."""
        return True

    def forward(self, b: ProgramBuilder, part: RankPart) -> None:
        """See `Tower`."""
        residual = self.embedding.forward(b, part, b.rounded(b.given(PATCHES, self.embedding.pixels)))
        self.first_norm.apply(b, part, residual)
        (place,) = self.layer_caches(part).places
        b.rotate_as_given(part.rope(self.rope), ROTARY, self.rope.rotary_dim)
        for block in self.blocks:
            block.forward(b, part, residual, place)
        squares = b.merge_rows(self.norm.forward(b, part, residual), side=self.side, factor=self.factor, extra=1)
        adapted = b.activated(b.summed(self.mlp.forward(b, part, squares)), self.mlp.activation)
        b.keep(FEATURES, self.connector.forward(b, part, b.rounded(adapted)))

    def scratch_columns(self, part: RankPart) -> int:
        """See `Layer`: what other towers of tiles have, and sums of the MLP in fp32, twice, and in bf16."""
        return super().scratch_columns(part) + self.mlp.scratch_columns(part) + 3 * self.mlp.hidden

    def message_columns(self, part: RankPart) -> int:
        """See `Layer`: its own residual stream is not that of the decoder."""
        return max(super().message_columns(part), self.mlp.hidden)
