"""Operations that keep a state of each sequence from step to step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from numaserve.workers.interface.protocol import OperationTerms
from numaserve.workers.program.buffers import Operand, Tensor
from numaserve.workers.program.caches import CacheIndex, DeltaHeads
from numaserve.workers.program.cost import BF16, FP32, Amount, OperationCost, RowBytes, StepWork, of_rows
from numaserve.workers.program.ops.base import Operation, Reads, Updates, Vector, Writes
from numaserve.workers.program.setup import ProgramSetup

ConvActivation = Literal["none", "silu"]
NormGate = Literal["silu", "sigmoid"]


@dataclass(frozen=True, kw_only=True)
class CausalConv(Operation):
    """A convolution of the first columns of `x` over the last `taps` tokens of their sequence: out, fp32 [tokens,
    columns].

    `weight` is [columns, taps], the oldest tap first; `bias` is [columns]. `state` begins with the inputs of the last
    taps - 1 tokens of each slot, fp32. Zeros precede a sequence.
    """

    x: Reads[Tensor]
    out: Writes[Tensor]
    weight: Vector
    bias: Vector | None
    taps: int
    activation: ConvActivation
    state: CacheIndex

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Each core has columns of all rows."""
        moves = conv_bytes(self.out.cols, self.taps)
        return [OperationCost("causal_conv", "rows", lambda step: Amount(rows=step.tokens), moves=moves)]


def conv_bytes(columns: int, taps: int) -> RowBytes:
    """Return the bytes that a convolution reads and writes: weights, states of sequences, rows."""
    column = columns * FP32
    return RowBytes(step=taps * column, sequence=2 * (taps - 1) * column, token=2 * column)


@dataclass(frozen=True, kw_only=True)
class GatedDelta(Operation):
    """The gated delta rule (Yang et al., 2024) of each value head: out, fp32 [tokens, value heads * value_dim].

    `x` has the columns of queries and of keys of all key heads, then those of values. Queries and keys are divided by
    sqrt(sum(x²) + 1e-6), and queries by sqrt(key_dim) too. `gates` has a column b and then a column a of each value
    head: a state decays by exp(decay * softplus(a + decay_bias)) and learns at the rate sigmoid(b). Consecutive value
    heads share a key head. `state` has the fp32 states of a slot from byte `offset` on, `heads.kept` numbers in
    an order of the interpreter's own; zeros at position 0.
    """

    x: Reads[Tensor]
    gates: Reads[Tensor]
    out: Writes[Tensor]
    decay: Vector
    decay_bias: Vector
    heads: DeltaHeads
    state: CacheIndex
    offset: int

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Each token multiplies with the states three times."""
        return [_cost_of_states("gated_delta", self.heads, 6)]


@dataclass(frozen=True, kw_only=True)
class StateSpace(Operation):
    """The selective state space of Mamba-2 (Dao and Gu, 2024) of each value head: out, fp32 [tokens, value heads *
    value_dim].

    `x` has the columns of C and of B of all key heads, then those of x. `gates` has a column dt of each value head. A
    step is softplus(dt + decay_bias), at least `least_step` and at most `most_step`: a state decays by exp(decay *
    step), and B x^T times the step is added. Its product with C, and `skip` times x, are the result. `heads`, `state`
    and `offset` are as for `GatedDelta`.
    """

    x: Reads[Tensor]
    gates: Reads[Tensor]
    out: Writes[Tensor]
    decay: Vector
    decay_bias: Vector
    skip: Vector
    least_step: float
    most_step: float
    heads: DeltaHeads
    state: CacheIndex
    offset: int

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Each token multiplies with the states twice."""
        return [_cost_of_states("state_space", self.heads, 4)]


@dataclass(frozen=True, kw_only=True)
class KeyDecays(Operation):
    """The gates of `KeyDelta`: out, fp32 [tokens, value heads * (1 + key_dim)] = `b`, then exp(decay * softplus(x +
    bias)) of each dimension of the keys of each value head. `decay` is [value heads], `bias` like `x`."""

    b: Reads[Tensor]
    x: Reads[Tensor]
    out: Writes[Tensor]
    decay: Vector
    bias: Vector

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """fp32 is read, and as much written."""
        return [of_rows("key_decays", self.out.cols * 2 * FP32)]


@dataclass(frozen=True, kw_only=True)
class KeyDelta(Operation):
    """Kimi Delta Attention (Kimi Team, 2025) of each value head: out, fp32 [tokens, value heads * value_dim].

    It is `GatedDelta` but for the decay, which each dimension of keys has by itself. `gates` are from `KeyDecays`.
    """

    x: Reads[Tensor]
    gates: Reads[Tensor]
    out: Writes[Tensor]
    heads: DeltaHeads
    state: CacheIndex
    offset: int

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Each token multiplies with the states three times, and once with the decays."""
        return [_cost_of_states("key_delta", self.heads, 7)]


@dataclass(frozen=True, kw_only=True)
class GatedHeadNorm(Operation):
    """out, bf16 = the norm of each head of `x`, fp32 [tokens, heads * dim], times silu or sigmoid of `gate`; `weight`
    is [dim]."""

    x: Reads[Tensor]
    gate: Reads[Tensor]
    out: Writes[Operand]
    weight: Vector
    eps: float
    heads: int
    by: NormGate

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """fp32 is read twice, bf16 written."""
        return [of_rows("gated_head_norm", self.x.cols * (2 * FP32 + BF16))]


@dataclass(frozen=True, kw_only=True)
class SigmoidGate(Operation):
    """Multiplies `x`, bf16 [tokens, columns], by sigmoid(gate), fp32 of the same shape."""

    x: Updates[Operand]
    gate: Reads[Tensor]

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """bf16 is read and written, fp32 read."""
        return [of_rows("sigmoid_gate", self.x.cols * (2 * BF16 + FP32))]


def _cost_of_states(name: str, heads: DeltaHeads, element_flops: int) -> OperationCost:
    """The cost of an operation that reads and writes the states of each sequence once."""
    of_sequence = 2 * FP32 * heads.kept
    of_token = element_flops * heads.values * heads.key_dim * heads.value_dim
    terms = OperationTerms(name, row_flops=of_token, sequence_bytes=of_sequence)

    def amount(step: StepWork) -> Amount:
        sequences = len(step.sequences)
        return Amount(of_sequence * sequences, of_token * step.tokens, step.tokens / max(sequences, 1))

    return OperationCost(name, "recurrent", amount, computes="fp32", terms=terms)
