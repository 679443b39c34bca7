"""Kimi Delta Attention (Kimi Team, 2025): gated delta networks in which each dimension of keys decays by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
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
class KimiDelta(Mixer):
    """The delta rule on short convolutions of queries, keys and values. Its results are normed, and gated by a sigmoid.

    The decays and the gate have two projections each, of which the first has `dim` rows. `at` is what its modules'
    names begin with, such as "layers.3.".
    """

    at: str
    hidden: int
    heads: int
    dim: int  # of queries, keys and values
    taps: int  # tokens of the convolutions
    eps: float
    decay_is_log: bool = True  # the checkpoint has the logarithm of minus the decay

    @cached_property
    def keys(self) -> Axis:
        """The heads of queries and keys."""
        return KvHeads("delta_keys", self.heads, self.heads)

    @cached_property
    def values(self) -> Axis:
        """The heads of values, which ranks divide."""
        return QueryHeads("delta_values", self.heads, self.heads)

    @cached_property
    def cache(self) -> DeltaState:
        """See `Mixer`. Gates are b, and the decay of each dimension of a key."""
        return DeltaState(self.keys, self.values, self.dim, self.dim, self.taps - 1, gates=1 + self.dim)

    @cached_property
    def qkv(self) -> MatrixParameter:
        """One matrix with the rows of the rank's queries, keys and values."""
        return MatrixParameter(tuple(self._rows(name) for name in "qkv"))

    @cached_property
    def narrow(self) -> MatrixParameter:
        """The rows of b, and the whole first projections of the decays and of the gate: bf16. Few bytes decide how fast
        states decay. Next to queries, a first projection that a checkpoint does not quantize would widen them."""
        b = Source(f"{self._inside}b_proj", (self.heads, self.hidden), f"{self.at}ssm_beta")
        firsts = (whole(self._first(f"{each}_a_proj", f"ssm_{each}_a")) for each in "fg")
        return MatrixParameter((Part(b, Order(self.heads), self.values), *firsts), rule="bf16")

    @cached_property
    def decays(self) -> MatrixParameter:
        """The second projection of the decays: bf16 likewise."""
        return MatrixParameter((self._second("f_b_proj", "ssm_f_b"),), rule="bf16")

    @cached_property
    def gate(self) -> MatrixParameter:
        """The second projection of the gate."""
        return MatrixParameter((self._second("g_b_proj", "ssm_g_b"),))

    @cached_property
    def convolution(self) -> VectorParameter:
        """The weights of each column of queries, keys and values."""
        shape = (self._columns, 1, self.taps)
        sources = (Source(f"{self._inside}{n}_conv1d.weight", shape, f"{self.at}ssm_conv1d_{n}.weight") for n in "qkv")
        return VectorParameter(tuple(self._of_heads(source) for source in sources))

    @cached_property
    def decay(self) -> VectorParameter:
        """The factor, below zero, of each head's logarithms of decays."""
        source = Source(f"{self._inside}A_log", (self.heads,), f"{self.at}ssm_a")
        factor = -1.0 if self.decay_is_log else 1.0
        return VectorParameter((Part(source, Order(self.heads), self.values),), factor=factor, is_log=self.decay_is_log)

    @cached_property
    def decay_bias(self) -> VectorParameter:
        """The bias of the projection of the decays."""
        return VectorParameter(
            (self._of_heads(Source(f"{self._inside}dt_bias", (self._columns,), f"{self.at}ssm_dt.bias")),)
        )

    @cached_property
    def norm(self) -> VectorParameter:
        """The weight that the norms of all heads share."""
        source = Source(f"{self._inside}o_norm.weight", (self.dim,), f"{self.at}ssm_norm.weight")
        return VectorParameter((whole(source),))

    @cached_property
    def o(self) -> MatrixParameter:
        """The output projection, with the columns of the rank's heads."""
        source = Source(f"{self._inside}o_proj", (self.hidden, self._columns), f"{self.at}attn_output")
        return MatrixParameter((whole(source),), Split(self.values, self.dim))

    def own_parameters(self) -> Iterator[Parameter | None]:
        """See `Layer`."""
        yield from (self.qkv, self.narrow, self.decays, self.gate, self.convolution, self.decay, self.decay_bias)
        yield from (self.norm, self.o)

    def in_gguf(self, pairs: bool, tensors: Collection[str]) -> Self:
        """llama.cpp's converter takes the logarithm away."""
        return replace(self, decay_is_log=False)

    def scratch_columns(self, part: RankPart) -> int:
        """Queries, keys and values before and after the convolutions, both first projections, in bf16 too, decays
        before and after, b twice, the gate, results and their norms."""
        heads = self.cache.heads(part)
        return 2 * heads.convolved + 3 * self.dim + 5 * heads.values * self.dim + 2 * heads.values

    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand, place: CacheIndex) -> Partial:
        """See `Mixer`."""
        heads = self.cache.heads(part)
        qkv, narrow = b.linear(x, part.matrix(self.qkv)), b.linear(x, part.matrix(self.narrow))
        beta, first_decays, first_gate = b.split(narrow, heads.values, self.dim)
        made = b.key_delta(
            b.causal_conv(qkv, part.whole(self.convolution), taps=self.taps, state=place, activation="silu"),
            beta,
            b.linear(b.rounded(first_decays), part.matrix(self.decays)),
            decay=part.whole(self.decay),
            decay_bias=part.whole(self.decay_bias),
            heads=heads,
            state=place,
            offset=self.cache.matrices_at(part),
        )
        gate = b.linear(b.rounded(first_gate), part.matrix(self.gate))
        normed = b.gated_head_norm(made, gate, part.whole(self.norm), eps=self.eps, heads=heads.values, by="sigmoid")
        return b.linear_partial(normed, part.matrix(self.o))

    @property
    def _inside(self) -> str:
        return f"{self.at}self_attn."

    @property
    def _columns(self) -> int:
        return self.heads * self.dim

    def _rows(self, name: str) -> Part:
        shape = (self._columns, self.hidden)
        return self._of_heads(Source(f"{self._inside}{name}_proj", shape, f"{self.at}attn_{name}"))

    def _first(self, module: str, gguf: str) -> Source:
        return Source(self._inside + module, (self.dim, self.hidden), self.at + gguf)

    def _second(self, module: str, gguf: str) -> Part:
        return self._of_heads(Source(self._inside + module, (self._columns, self.dim), self.at + gguf))

    def _of_heads(self, source: Source) -> Part:
        return Part(source, Order(self.heads, self.dim), self.values, self.dim)
