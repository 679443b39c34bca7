"""Multi-head latent attention (DeepSeek-AI, 2024): keys and values of all heads are made of one latent, and one rotated
key. The projections of keys and values are absorbed, so that what is cached is the latent."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from numaserve.workers.layers.axes import Axis, KvHeads, QueryHeads, Units
from numaserve.workers.layers.caches import Latent
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
from numaserve.workers.program.handles import MATRIX_PAD
from numaserve.workers.program.rope import RopeConfig

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Partial, Tensor
    from numaserve.workers.program.caches import CacheIndex
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class LatentNames:
    """The modules of latent attention."""

    q: str = "self_attn.q_proj"  # where queries have no latent
    q_a: str = "self_attn.q_a_proj"
    q_a_norm: str = "self_attn.q_a_layernorm"
    q_b: str = "self_attn.q_b_proj"
    kv_a: str = "self_attn.kv_a_proj_with_mqa"
    kv_a_norm: str = "self_attn.kv_a_layernorm"
    kv_b: str = "self_attn.kv_b_proj"
    k_b: str = "self_attn.k_b_proj"  # the two instead of it where they are apart
    v_b: str = "self_attn.v_b_proj"
    o: str = "self_attn.o_proj"


@dataclass(frozen=True)
class LatentAttention(Mixer):
    """A head's query and key have `nope_dim` dimensions without positions, then `rope_dim` rotated ones.

    `at` is what its modules' names begin with, such as "layers.3.".
    """

    at: str
    hidden: int
    heads: int
    q_rank: int | None  # of the queries' own latent; None: they have none
    kv_rank: int  # of the latent of keys and values
    nope_dim: int
    rope_dim: int
    value_dim: int
    rope: RopeConfig
    scale: float  # on the scores
    pairs: bool = True  # rotated dimensions lie in pairs in the checkpoint, not in halves
    eps: float = 1e-6  # of the latents' norms, whatever the other norms have
    expansions_apart: bool = False  # the checkpoint has the expansion of keys, turned, and that of values apart
    names: LatentNames = field(default_factory=LatentNames)

    @property
    def query_dim(self) -> int:
        """Dimensions of a head of the queries."""
        return self.nope_dim + self.rope_dim

    @property
    def cache_dim(self) -> int:
        """Dimensions of a token in the cache."""
        return self.kv_rank + self.rope_dim

    @cached_property
    def queries(self) -> Axis:
        """The query heads."""
        return QueryHeads("query_heads", self.heads, 1)

    @cached_property
    def keys(self) -> Axis:
        """The one head of keys that is cached."""
        return KvHeads("kv_heads", 1, self.heads)

    @cached_property
    def latents(self) -> Axis | None:
        """The rows that make latents, of a token first, then of its queries.

        Queries without a latent are of heads, and what is left is narrow: every rank has it all.
        """
        return None if self.q_rank is None else Units("latents", self.cache_dim + self.q_rank, MATRIX_PAD)

    @property
    def cache(self) -> Latent:
        """See `Mixer`."""
        return Latent(self.queries, self.keys, self.cache_dim, self.kv_rank)

    @cached_property
    def qkv_a(self) -> MatrixParameter:
        """The projections of the hidden state, as one matrix.

        Rows of the latent, of the rotated key in halves, then of the queries' latent or, where these have none, of the
        queries. With a latent of queries ranks divide the rows.
        """
        order = Order(1, self.cache_dim, pairs=self.rope_dim if self.pairs else 0)
        token = Part(self._source(self.names.kv_a, self.cache_dim, self.hidden, "attn_kv_a_mqa"), order, self.latents)
        if self.q_rank is None:
            queries = self._queries(self.names.q, self.hidden, "attn_q")
        else:
            source = self._source(self.names.q_a, self.q_rank, self.hidden, "attn_q_a")
            queries = Part(source, Order(self.q_rank), self.latents, at=self.cache_dim)
        return MatrixParameter((token, queries))

    @cached_property
    def q_b(self) -> MatrixParameter | None:
        """Expands the queries' latent; rows of each head without positions, then rotated ones in halves."""
        if self.q_rank is None:
            return None
        return MatrixParameter((self._queries(self.names.q_b, self.q_rank, "attn_q_b"),))

    @cached_property
    def w_uk(self) -> MatrixParameter:
        """The expansion of latents to keys, each head's turned: [heads * latent, part without positions]."""
        if self.expansions_apart:
            source = self._source(self.names.k_b, self.heads * self.kv_rank, self.nope_dim, "attn_k_b")
            part = Part(source, Order(self.heads, self.kv_rank), self.queries, self.kv_rank)
            return MatrixParameter((part,), rule="absorbed")
        order = Order(self.heads, self.nope_dim + self.value_dim, count=self.nope_dim)
        part = Part(self._expansion, order, self.queries, self.nope_dim)
        return MatrixParameter((part,), layout="turned", rule="absorbed")

    @cached_property
    def w_uv(self) -> MatrixParameter:
        """The expansion of latents to values: [heads * value, latent]."""
        source, order = (
            self._expansion,
            Order(self.heads, self.nope_dim + self.value_dim, 0, self.nope_dim, self.value_dim),
        )
        if self.expansions_apart:
            source = self._source(self.names.v_b, self.heads * self.value_dim, self.kv_rank, "attn_v_b")
            order = Order(self.heads, self.value_dim)
        return MatrixParameter((Part(source, order, self.queries, self.value_dim),), rule="absorbed")

    @cached_property
    def o(self) -> MatrixParameter:
        """The output projection, with the columns of the rank's heads."""
        source = self._source(self.names.o, self.hidden, self.heads * self.value_dim, "attn_output")
        return MatrixParameter((whole(source),), Split(self.queries, self.value_dim))

    @cached_property
    def kv_a_norm(self) -> VectorParameter:
        """The norm of the latent of keys and values."""
        return self._norm(self.names.kv_a_norm, self.kv_rank, "attn_kv_a_norm")

    @cached_property
    def q_a_norm(self) -> VectorParameter | None:
        """The norm of the queries' latent."""
        return None if self.q_rank is None else self._norm(self.names.q_a_norm, self.q_rank, "attn_q_a_norm")

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.qkv_a, self.kv_a_norm, self.q_a_norm, self.q_b, self.w_uk, self.w_uv, self.o)

    def in_gguf(self, pairs: bool, tensors: Collection[str]) -> Self:
        """Newer files have the expansions apart. Rotated dimensions lie in pairs in all of them."""
        return replace(self, expansions_apart=all(not name.endswith(".attn_kv_b.weight") for name in tensors))

    @property
    def ropes(self) -> frozenset[RopeConfig]:
        """See `Layer`."""
        return frozenset((self.rope,))

    @property
    def shares_queries(self) -> bool:
        """See `Layer`."""
        return True

    def scratch_columns(self, part: RankPart) -> int:
        """Heads' queries, absorbed ones, results and values, and latents."""
        per_head = self.query_dim + self.nope_dim + self.cache_dim + self.kv_rank + self.value_dim
        return len(part.along(self.queries)) * per_head + self.cache_dim + 2 * (self.q_rank or 0)

    def message_columns(self, part: RankPart) -> int:
        """Columns of the latents that one rank makes."""
        return self.cache_dim if self.latents is None else len(part.along(self.latents))

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand, place: CacheIndex) -> Partial:
        """See `Mixer`."""
        bounds = () if self.latents is None else part.partition.bounds(self.latents)
        kv, q = b.split(b.latents(x, part.matrix(self.qkv_a), bounds), self.cache_dim)
        attended = b.latent_attention(
            self._expanded(b, part, q),
            kv,
            part.matrix(self.w_uk),
            part.matrix(self.w_uv),
            cache=place,
            rope=part.rope(self.rope),
            norm=part.whole(self.kv_a_norm),
            eps=self.eps,
            scale=self.scale,
        )
        return b.linear_partial(attended, part.matrix(self.o))

    def _expanded(self, b: ProgramBuilder, part: RankPart, q: Tensor) -> Tensor:
        if self.q_b is None or self.q_a_norm is None:
            return q
        return b.linear(b.rms_norm(q, part.whole(self.q_a_norm), self.eps), part.matrix(self.q_b))

    def _queries(self, module: str, columns: int, gguf: str) -> Part:
        source = self._source(module, self.heads * self.query_dim, columns, gguf)
        order = Order(self.heads, self.query_dim, pairs=self.rope_dim if self.pairs else 0)
        return Part(source, order, self.queries, self.query_dim)

    @cached_property
    def _expansion(self) -> Source:
        rows = self.heads * (self.nope_dim + self.value_dim)
        return self._source(self.names.kv_b, rows, self.kv_rank, "attn_kv_b")

    def _source(self, module: str, rows: int, columns: int, gguf: str) -> Source:
        return Source(self.at + module, (rows, columns), self.at + gguf)

    def _norm(self, module: str, size: int, gguf: str) -> VectorParameter:
        source = Source(f"{self.at}{module}.weight", (size,), f"{self.at}{gguf}.weight")
        return VectorParameter((whole(source),))
