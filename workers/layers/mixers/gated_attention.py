"""Attention whose results are gated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.parameters import Order, Part, Source

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Partial
    from numaserve.workers.program.caches import CacheIndex
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class GatedAttention(Attention):
    """Attention whose result is multiplied by the sigmoid of a gate (Qiu et al., 2025). In the projection of queries,
    the rows of a head's gate follow those of the head."""

    def scratch_columns(self, part: RankPart) -> int:
        """The columns of attention, and the gates."""
        return super().scratch_columns(part) + len(part.along(self.queries)) * self.head_dim

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand, place: CacheIndex) -> Partial:
        """See `Mixer`."""
        heads = len(part.along(self.queries)) + 2 * len(part.along(self.keys))
        made = b.linear(x, part.matrix(self.qkv), part.vector(self.heads_bias))
        qkv, gate = b.split(made, heads * self.head_dim)
        q = self.norms.store(b, part, qkv, part.rope(self.rotation.rope), place, source=self.source)
        attended = self.mask.attend(b, part, q, self.scale, place)
        b.sigmoid_gate(attended, gate)
        return b.linear_partial(attended, part.matrix(self.o))

    @cached_property
    def _heads(self) -> tuple[Part, ...]:
        _, k, v = super()._heads
        dim, rows = self.head_dim, 2 * self.query_heads * self.head_dim
        source = Source(self.at + self.names.q, (rows, self.hidden), f"{self.at}attn_q")
        q, gate = (
            Part(source, Order(self.query_heads, 2 * dim, start=start, count=dim), self.queries, dim)
            for start in (0, dim)
        )
        return q, k, v, gate
