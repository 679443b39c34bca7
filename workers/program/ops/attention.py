"""Attention over keys and values of heads, or over latents."""

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.workers.interface.protocol import OperationTerms
from numaserve.workers.program.buffers import Operand, Tensor
from numaserve.workers.program.cost import (
    BF16,
    FP32,
    Amount,
    Kind,
    OperationCost,
    StepWork,
    attended,
    kv_bytes_per_token,
    of_runs,
    parted,
)
from numaserve.workers.program.ops.base import Joining, Operation, Reads, Rope, Vector, Writes
from numaserve.workers.program.setup import ProgramSetup


@dataclass(frozen=True, kw_only=True)
class RopeStore(Operation):
    """Norms and rotates the heads of qkv [tokens, q heads, k heads and v heads], stores K and V of layer `layer` in
    their pages, and writes q, bf16 [tokens, heads * padded head]. `norm_rotated`: it rotates before it norms."""

    qkv: Reads[Tensor]
    q: Writes[Tensor]
    layer: int
    rope: Rope
    q_norm: Vector | None
    k_norm: Vector | None
    eps: float
    norm_rotated: bool

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """fp32 is read; queries, keys and values written in bf16."""
        shape = program.shape
        heads = shape.q_heads + 2 * shape.kv_heads
        return [of_runs("rope_store", heads, heads * shape.head_dim * (FP32 + BF16))]


@dataclass(frozen=True, kw_only=True)
class Attention(Joining):
    """Causal attention over all tokens of each sequence so far: out, bf16 [tokens, q heads * values].

    `window`: how many tokens are looked back at, the current one included, 0: all. `softcap` 0: none. `sinks`, one for
    each head, are logits that take part in the softmax without a value. `partial` is room for what is to be merged.
    """

    q: Reads[Tensor]
    out: Writes[Operand]
    partial: Writes[Tensor]
    layer: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: Vector | None = None

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """The KV cache is read once for all new tokens of a sequence."""
        shape, dtype = program.shape, program.settings.kv_cache_dtype
        latent = shape.value_dim > 0
        position = kv_bytes_per_token(shape.kv_heads, shape.head_dim, dtype, latent=latent)
        pair = 2 * shape.q_heads * (shape.head_dim + (shape.value_dim or shape.head_dim))
        # The terms cover all sequences. Sequences whose latents the ranks divide are few, and take less.
        terms = OperationTerms("attention", position_bytes=position, pair_flops=pair, window=self.window)

        def amount(step: StepWork) -> Amount:
            _, whole = parted(step, program.context_parallel)
            positions, pairs = attended(whole, self.window)
            return Amount(position * positions, pair * pairs, whole.tokens / max(len(whole.sequences), 1))

        kind: Kind = "latent" if latent else "attention"
        return [OperationCost("attention", kind, amount, weights=dtype, terms=terms)]
