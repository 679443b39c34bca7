"""Norms of queries and keys, one class for each kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.norm import DividedNorm, Norm

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Tensor
    from numaserve.workers.program.caches import CacheIndex
    from numaserve.workers.program.handles import Rope
    from numaserve.workers.program.ops.attention import KvSource
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class QueryKeyNorms(Layer, ABC):
    """A kind of norm of queries and keys."""

    @abstractmethod
    def store(
        self, b: ProgramBuilder, part: RankPart, qkv: Tensor, rope: Rope, cache: CacheIndex, *, source: KvSource
    ) -> Tensor:
        """Norm and rotate the heads of `qkv`, fp32 [tokens, heads * head_dim], and store keys and values, which come
        from `source`, in `cache`.

        Returns the queries, bf16 [tokens, query heads * padded head_dim].
        """


@dataclass(frozen=True)
class NoNorms(QueryKeyNorms):
    """Queries and keys without norms."""

    def store(
        self, b: ProgramBuilder, part: RankPart, qkv: Tensor, rope: Rope, cache: CacheIndex, *, source: KvSource
    ) -> Tensor:
        """See `QueryKeyNorms`."""
        return b.qkv_rope(qkv, cache=cache, rope=rope, source=source)


@dataclass(frozen=True)
class HeadNorms(QueryKeyNorms):
    """An RMS norm of each head: all query heads share a weight, and all key heads. Without `k` no keys are stored."""

    q: Norm
    k: Norm | None
    after_rotation: bool = False
    of_values: bool = False  # each head of values is normalised too, without a weight

    def store(
        self, b: ProgramBuilder, part: RankPart, qkv: Tensor, rope: Rope, cache: CacheIndex, *, source: KvSource
    ) -> Tensor:
        """See `QueryKeyNorms`."""
        return b.qkv_rope(
            qkv,
            cache=cache,
            rope=rope,
            norm="after" if self.after_rotation else "before",
            q_norm=self.q.weight(part),
            k_norm=None if self.k is None else self.k.weight(part),
            eps=self.q.eps,
            source=source,
            norm_values=self.of_values,
        )


@dataclass(frozen=True)
class UnitNorms(QueryKeyNorms):
    """An RMS norm of each head after the rotation, without a weight."""

    eps: float

    def store(
        self, b: ProgramBuilder, part: RankPart, qkv: Tensor, rope: Rope, cache: CacheIndex, *, source: KvSource
    ) -> Tensor:
        """See `QueryKeyNorms`."""
        return b.qkv_rope(qkv, cache=cache, rope=rope, norm="after", eps=self.eps, source=source)


@dataclass(frozen=True)
class AllHeadsNorms(QueryKeyNorms):
    """An RMS norm over all query heads together, and one over all key heads."""

    q: DividedNorm
    k: DividedNorm

    def store(
        self, b: ProgramBuilder, part: RankPart, qkv: Tensor, rope: Rope, cache: CacheIndex, *, source: KvSource
    ) -> Tensor:
        """See `QueryKeyNorms`."""
        norms = self.q, self.k
        b.divided_norm(
            qkv,
            [part.whole(norm.parameter) for norm in norms],
            counted=[norm.counted(part) for norm in norms],
            columns=[norm.columns for norm in norms],
            eps=self.q.eps,
        )
        return b.qkv_rope(qkv, cache=cache, rope=rope, source=source)
