"""Gated delta networks (Yang et al., 2024): a matrix for each value head, which every token lets decay and corrects."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Self

from numaserve.workers.layers.axes import Axis, KvHeads, QueryHeads
from numaserve.workers.layers.caches import DeltaState
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

if TYPE_CHECKING:
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Partial
    from numaserve.workers.program.caches import CacheIndex
    from numaserve.workers.program.recording.builder import ProgramBuilder


@dataclass(frozen=True)
class GatedDeltaNames:
    """The modules and vectors of a gated delta network.

    Where `z` is `qkv`, that tensor holds for each key head its query, its key, the values of its value heads and their
    z. Where `a` is `b`, it holds for each key head b and then a of its value heads.
    """

    qkv: str = "linear_attn.in_proj_qkv"
    z: str = "linear_attn.in_proj_z"
    b: str = "linear_attn.in_proj_b"
    a: str = "linear_attn.in_proj_a"
    convolution: str = "linear_attn.conv1d.weight"
    decay: str = "linear_attn.A_log"
    decay_bias: str = "linear_attn.dt_bias"
    norm: str = "linear_attn.norm.weight"
    o: str = "linear_attn.out_proj"


_APART = GatedDeltaNames()


@dataclass(frozen=True)
class GatedDelta(Mixer):
    """The gated delta rule on a short convolution of queries, keys and values. Its results are normed and gated by z.

    Consecutive value heads share a key head. `at` is what its modules' names begin with, such as "layers.3.".
    """

    at: str
    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int  # tokens of the convolution
    eps: float
    names: GatedDeltaNames = field(default_factory=GatedDeltaNames)
    rounds: int = 1  # value heads lie round-robin in the checkpoint, see `in_groups`
    decay_is_log: bool = True  # the checkpoint has the logarithm of minus the decay

    @cached_property
    def keys(self) -> Axis:
        """The heads of queries and keys."""
        return KvHeads("delta_keys", self.key_heads, self.value_heads)

    @cached_property
    def values(self) -> Axis:
        """The heads of values, which ranks divide."""
        return QueryHeads("delta_values", self.value_heads, self.key_heads)

    @cached_property
    def cache(self) -> DeltaState:
        """See `Mixer`."""
        return DeltaState(self.keys, self.values, self.key_dim, self.value_dim, self.taps - 1)

    @cached_property
    def qkvz(self) -> MatrixParameter:
        """One matrix with the rows of the rank's queries, keys, values and z."""
        names = self.names
        if names.qkv == names.z:
            return MatrixParameter(self._by_key_head)
        source = self._source(names.z, self._value_rows, "attn_gate")
        z = Part(source, Order(self.value_heads, self.value_dim, rounds=self.rounds), self.values, self.value_dim)
        return MatrixParameter((*self._heads_of(self._source(names.qkv, self._convolved, "attn_qkv")), z))

    @cached_property
    def gates(self) -> MatrixParameter:
        """The rows of b, then of a: bf16, as official checkpoints keep them. Few bytes decide how fast states decay."""
        names, count = self.names, self.value_heads
        if names.b == names.a:
            source, group = self._source(names.b, 2 * count, "ssm_ba"), count // self.key_heads
            orders = [Order(self.key_heads, 2 * group, start=start, count=group) for start in (0, group)]
            return MatrixParameter(tuple(Part(source, order, self.values) for order in orders), rule="bf16")
        sources = self._source(names.b, count, "ssm_beta"), self._source(names.a, count, "ssm_alpha")
        return MatrixParameter(tuple(self._of_each_value(source) for source in sources), rule="bf16")

    @cached_property
    def convolution(self) -> VectorParameter:
        """The weights of each column of queries, keys and values."""
        shape = (self._convolved, 1, self.taps)
        source = Source(self.at + self.names.convolution, shape, f"{self.at}ssm_conv1d.weight")
        return VectorParameter(self._heads_of(source))

    @cached_property
    def decay(self) -> VectorParameter:
        """The factor, below zero, of each value head's logarithm of decays."""
        source = Source(self.at + self.names.decay, (self.value_heads,), f"{self.at}ssm_a")
        factor = -1.0 if self.decay_is_log else 1.0
        return VectorParameter((self._of_each_value(source),), factor=factor, is_log=self.decay_is_log)

    @cached_property
    def decay_bias(self) -> VectorParameter:
        """The bias of each value head's a."""
        source = Source(self.at + self.names.decay_bias, (self.value_heads,), f"{self.at}ssm_dt.bias")
        return VectorParameter((self._of_each_value(source),))

    @cached_property
    def norm(self) -> VectorParameter:
        """The weight that the norms of all value heads share."""
        source = Source(self.at + self.names.norm, (self.value_dim,), f"{self.at}ssm_norm.weight")
        return VectorParameter((whole(source),))

    @cached_property
    def o(self) -> MatrixParameter:
        """The output projection, with the columns of the rank's value heads."""
        source = Source(self.at + self.names.o, (self.hidden, self._value_rows), f"{self.at}ssm_out")
        return MatrixParameter((whole(source),), Split(self.values, self.value_dim, self.rounds))

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.qkvz, self.gates, self.convolution, self.decay, self.decay_bias, self.norm, self.o)

    def in_gguf(self, pairs: bool, tensors: Collection[str]) -> Self:
        """llama.cpp's converters take the logarithm away, take q, k and v apart from z in all but the first files, and
        put value heads round-robin where a and b are apart."""
        names = self.names
        are_whole = f"{self.at.replace('layers.', 'blk.', 1)}ssm_in.weight" in tensors
        if names.qkv == names.z and not are_whole:
            names = replace(names, qkv=_APART.qkv, z=_APART.z)
        rounds = 1 if names.a == names.b else self.value_heads // self.key_heads
        return replace(self, names=names, rounds=rounds, decay_is_log=False)

    def scratch_columns(self, part: RankPart) -> int:
        """Queries, keys and values before and after the convolution, z, gates, results and their norms."""
        heads = self.cache.heads(part)
        return 2 * heads.convolved + 3 * heads.values * self.value_dim + 2 * heads.values

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand, place: CacheIndex) -> Partial:
        """See `Mixer`."""
        heads = self.cache.heads(part)
        qkvz, gates = b.linear(x, part.matrix(self.qkvz)), b.linear(x, part.matrix(self.gates))
        _, z = b.split(qkvz, heads.convolved)
        made = b.gated_delta(
            b.causal_conv(qkvz, part.whole(self.convolution), taps=self.taps, state=place, activation="silu"),
            gates,
            decay=part.whole(self.decay),
            decay_bias=part.whole(self.decay_bias),
            heads=heads,
            state=place,
            offset=self.cache.matrices_at(part),
        )
        normed = b.gated_head_norm(made, z, part.whole(self.norm), eps=self.eps, heads=heads.values)
        return b.linear_partial(normed, part.matrix(self.o))

    @property
    def _value_rows(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def _convolved(self) -> int:
        return 2 * self.key_heads * self.key_dim + self._value_rows

    @cached_property
    def _by_key_head(self) -> tuple[Part, ...]:
        """The parts of a tensor that has q, k, v and z of each key head."""
        group = self.value_heads // self.key_heads * self.value_dim
        key, value = (self.key_dim, self.keys, self.key_dim), (group, self.values, self.value_dim)
        of_head = (key, key, value, value)
        *starts, height = accumulate((count for count, _, _ in of_head), initial=0)
        source = self._source(self.names.qkv, self.key_heads * height, "ssm_in")
        return tuple(
            Part(source, Order(self.key_heads, height, start=start, count=count), axis, width)
            for start, (count, axis, width) in zip(starts, of_head, strict=True)
        )

    def _heads_of(self, source: Source) -> tuple[Part, ...]:
        """The parts of a tensor that has all queries, all keys, then all values."""
        keys = self.key_heads * self.key_dim
        q, k = (
            Part(source, Order(self.key_heads, self.key_dim, first), self.keys, self.key_dim) for first in (0, keys)
        )
        order = Order(self.value_heads, self.value_dim, 2 * keys, rounds=self.rounds)
        return q, k, Part(source, order, self.values, self.value_dim)

    def _of_each_value(self, source: Source) -> Part:
        return Part(source, Order(self.value_heads, rounds=self.rounds), self.values)

    def _source(self, module: str, rows: int, gguf: str) -> Source:
        return Source(self.at + module, (rows, self.hidden), self.at + gguf)
