"""Attention over the keys and values of heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from numaserve.workers.layers.axes import BorrowingHeads, KvHeads, QueryHeads, attention_heads
from numaserve.workers.layers.caches import Borrowed, Paged
from numaserve.workers.layers.layer import Mixer
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.query_key_norms import NoNorms, QueryKeyNorms
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.parameters import (
    MatrixParameter,
    Order,
    Parameter,
    Part,
    Rule,
    Source,
    Split,
    VectorParameter,
    stacked,
    vector,
    whole,
)
from numaserve.workers.program.ops.attention import KvSource

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Partial
    from numaserve.workers.program.caches import CacheIndex
    from numaserve.workers.program.handles import Vector
    from numaserve.workers.program.recording.builder import ProgramBuilder

Biases = Literal["none", "qkv", "all"]  # the projections that have biases; "all": the output projection too


@dataclass(frozen=True)
class AttentionNames:
    """The modules of an attention layer, and the last one's name in GGUF files. Where q, k and v are one, it holds them
    below each other."""

    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    o: str = "self_attn.o_proj"
    gguf_o: str = "attn_output"


@dataclass(frozen=True)
class Attention(Mixer):
    """Grouped-query attention (Ainslie et al., 2023).

    `at` is what its modules' names begin with, such as "layers.3.".
    """

    at: str
    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    rotation: Rotation
    scale: float  # on the scores
    value_dim: int = 0  # dimensions of a value; 0: as many as of a key
    value_scale: float = 1.0
    norms: QueryKeyNorms = field(default_factory=NoNorms)
    mask: Mask = field(default_factory=Mask)
    biases: Biases = "none"
    source: KvSource = "projected"  # of keys and values; "cached": of the last layer before with the same cache
    names: AttentionNames = field(default_factory=AttentionNames)
    lender: tuple[QueryHeads, KvHeads] | None = None  # the heads of another model, whose cache it reads
    rule: Rule = "published"  # of the format of its matrices

    @cached_property
    def queries(self) -> QueryHeads | BorrowingHeads:
        """The query heads."""
        if self.lender is not None:
            return BorrowingHeads("query_heads", self.query_heads, self.lender[0])
        return attention_heads(self.query_heads, self.kv_heads, self.values)[0]

    @cached_property
    def keys(self) -> KvHeads:
        """The KV heads."""
        if self.lender is not None:
            return self.lender[1]
        return attention_heads(self.query_heads, self.kv_heads, self.values)[1]

    @property
    def values(self) -> int:
        """Dimensions of a value."""
        return self.value_dim or self.head_dim

    @property
    def cache(self) -> Paged | Borrowed:
        """See `Mixer`."""
        mask = self.mask
        cache = Paged(
            self.queries,
            self.keys,
            self.head_dim,
            self.values,
            mask.window,
            mask.chunked,
            mask.bidirectional,
            mask.images,
        )
        return Borrowed(cache) if self.source == "cached" else cache

    @cached_property
    def qkv(self) -> MatrixParameter:
        """One matrix with the rows of the rank's query heads, then of its key heads, then of its value heads, as far as
        `source` needs these."""
        return MatrixParameter(self._heads, rule=self.rule)

    @cached_property
    def heads_bias(self) -> VectorParameter | None:
        """The bias of `qkv`, in the order of its rows."""
        if self.biases == "none":
            return None
        parts = (replace(part, source=part.source.bias) for part in self._heads)
        return VectorParameter(tuple(parts))

    @cached_property
    def o(self) -> MatrixParameter:
        """The output projection, with the columns of the rank's query heads."""
        return MatrixParameter((whole(self._output),), Split(self.queries, self.values), rule=self.rule)

    @cached_property
    def o_bias(self) -> VectorParameter | None:
        """The bias of `o`, whole on every rank and added to the sum over the ranks."""
        return vector(self._output.bias if self.biases == "all" else None)

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.qkv, self.heads_bias, self.o, self.o_bias)

    def scratch_columns(self, part: RankPart) -> int:
        """Queries and results of the rank's heads, keys and values."""
        return (len(part.along(self.queries)) + len(part.along(self.keys))) * (self.head_dim + self.values)

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand, place: CacheIndex) -> Partial:
        """See `Mixer`."""
        qkv = b.linear(x, part.matrix(self.qkv), part.vector(self.heads_bias))
        q = self.norms.store(b, part, qkv, part.rope(self.rotation.rope), place, source=self.source)
        attended = self.mask.attend(b, part, q, self.scale, place, value_scale=self.value_scale)
        return b.linear_partial(attended, part.matrix(self.o))

    def bias(self, part: RankPart) -> Vector | None:
        """See `Mixer`."""
        return part.vector(self.o_bias)

    @cached_property
    def _heads(self) -> tuple[Part, ...]:
        names, at, dim = self.names, self.at, self.head_dim
        rotated, run, rounds = self.rotation.order(dim)
        heads = (
            (names.q, self.queries, dim, rotated),
            (names.k, self.keys, dim, rotated),
            (names.v, self.keys, self.values, 0),
        )[: self._parts]
        fused = names.q == names.k
        gguf = [f"{at}attn_qkv"] * 3 if fused else [f"{at}attn_{each}" for each in "qkv"]
        tensors = [
            (at + module, axis.count * wide, name) for (module, axis, wide, _), name in zip(heads, gguf, strict=False)
        ]
        return tuple(
            Part(source, Order(axis.count, wide, first, pairs=pairs, run=run, pair_rounds=rounds), axis, wide)
            for (source, first), (_, axis, wide, pairs) in zip(
                stacked(*tensors, columns=self.hidden), heads, strict=True
            )
        )

    @property
    def _parts(self) -> int:
        """The number of queries, keys and values that are projected."""
        return {"projected": 3, "keys": 2, "cached": 1}[self.source]

    @cached_property
    def _output(self) -> Source:
        shape = self.hidden, self.query_heads * self.values
        return Source(self.at + self.names.o, shape, self.at + self.names.gguf_o)
