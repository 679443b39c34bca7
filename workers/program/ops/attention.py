"""Attention over keys and values of heads, or over latents."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace
from numaserve.workers.interface.protocol import OperationTerms
from numaserve.workers.program.buffers import Operand, Tensor
from numaserve.workers.program.caches import CacheIndex
from numaserve.workers.program.cost import (
    BF16,
    FP32,
    Amount,
    Kind,
    OperationCost,
    StepWork,
    attended,
    kv_bytes_per_token,
    of_rows,
    parted,
)
from numaserve.workers.program.ops.base import Joining, Operation, Reads, Rope, Vector, Writes
from numaserve.workers.program.setup import ProgramSetup

HeadNorm = Literal["none", "before", "after"]  # the rotation
# The source of keys and values: columns of both, columns of keys that are the values too, or the cache, where an
# earlier layer has stored them.
KvSource = Literal["projected", "keys", "cached"]


@dataclass(frozen=True, kw_only=True)
class RopeStore(Operation):
    """Rotates the heads of qkv [tokens, q heads, k heads and v heads], stores K and V in the pages of `cache`, and
    writes q, bf16 [tokens, heads * padded head].

    `norm` is that of each head of queries and keys, before or after the rotation; without weights they are 1.
    `norm_values`: each head of values is normalised, without a weight. Queries are scaled by the factors of `rope`.
    Cosines and sines are those of `rope` at each position, or `rope_rows`, fp32 [tokens, cosines of all pairs, then
    sines].
    Values whose `source` is "keys" are these before their norm and rotation; with "cached" qkv has queries only, and
    nothing is stored.
    """

    qkv: Reads[Tensor]
    q: Writes[Tensor]
    cache: CacheIndex
    rope: Rope | None
    rope_rows: Reads[Tensor | None] = None
    norm: HeadNorm
    q_norm: Vector | None
    k_norm: Vector | None
    eps: float
    source: KvSource = "projected"
    norm_values: bool = False

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """fp32 is read; queries, keys and values written in bf16."""
        heads = program.shape.caches[self.cache.kind].heads
        stored = 0 if self.source == "cached" else heads.kv
        columns = (heads.query + stored) * heads.dim + stored * heads.values
        return [of_rows("rope_store", columns * (FP32 + BF16))]


@dataclass(frozen=True, kw_only=True)
class Attention(Joining):
    """Causal attention over the tokens of each sequence so far, or those in the window of `cache`.

    `out`: bf16 [tokens, q heads * values], times `value_scale`. `softcap` 0: none. `sinks`, one for each head, are
    logits that take part in the softmax without a value. `partial` is room for what is to be merged.
    """

    q: Reads[Tensor]
    out: Writes[Operand]
    partial: Writes[Tensor]
    cache: CacheIndex
    scale: float
    softcap: float = 0.0
    value_scale: float = 1.0
    sinks: Vector | None = None

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """The KV cache is read once for all new tokens of a sequence."""
        kind, dtype = program.shape.caches[self.cache.kind], program.settings.kv_cache_dtype
        heads = kind.heads
        position = kv_bytes_per_token(heads, dtype)
        pair = 2 * heads.query * (heads.dim + heads.values)
        # The terms cover all sequences. Sequences whose latents the ranks divide are few, and take less.
        terms = OperationTerms("attention", position_bytes=position, pair_flops=pair, window=kind.window.tokens)
        if kind.window.bidirectional:
            # In a whole sequence there are as many pairs on either side. Both sides count a token with itself.
            window = kind.window.tokens + 1 if kind.window.tokens else 0
            terms = replace(terms, pair_flops=2 * pair, row_flops=-pair, window=window)

        def amount(step: StepWork) -> Amount:
            _, whole = parted(step, program.context_parallel)
            positions, pairs = attended(whole, kind.window)
            return Amount(position * positions, pair * pairs, whole.tokens / max(len(whole.sequences), 1))

        of: Kind = "latent" if heads.is_latent else "attention"
        return [OperationCost("attention", of, amount, weights=dtype, terms=terms)]
