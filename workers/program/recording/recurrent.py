"""Layers with a state of each sequence, in the vocabulary of the Program builder."""

from numaserve.workers.program.buffers import Operand, Tensor
from numaserve.workers.program.caches import CacheIndex, DeltaHeads
from numaserve.workers.program.ops.base import Vector
from numaserve.workers.program.ops.recurrent import (
    CausalConv,
    ConvActivation,
    GatedDelta,
    GatedHeadNorm,
    KeyDecays,
    KeyDelta,
    NormGate,
    SigmoidGate,
    StateSpace,
)
from numaserve.workers.program.recording.recorder import Recorder


class RecurrentRecorder(Recorder):
    """Records operations that keep a state of each sequence."""

    def causal_conv(
        self,
        x: Tensor,
        weight: Vector,
        *,
        taps: int,
        state: CacheIndex,
        bias: Vector | None = None,
        activation: ConvActivation = "none",
    ) -> Tensor:
        """A convolution of the first columns of `x` over the last `taps` tokens of their sequence: fp32 [tokens,
        columns].

        `weight` is [columns, taps], the oldest tap first. `state` begins with room for the last taps - 1 inputs of a
        slot, fp32 [taps - 1, columns].
        """
        out = Tensor(x.rows, weight.size // taps, 4)
        self.operations.append(
            CausalConv(x=x, out=out, weight=weight, bias=bias, taps=taps, activation=activation, state=state)
        )
        return out

    def gated_delta(
        self,
        x: Tensor,
        gates: Tensor,
        *,
        decay: Vector,
        decay_bias: Vector,
        heads: DeltaHeads,
        state: CacheIndex,
        offset: int,
    ) -> Tensor:
        """The gated delta rule; see `GatedDelta`: fp32 [tokens, value heads * value_dim]."""
        out = Tensor(x.rows, heads.values * heads.value_dim, 4)
        self.operations.append(
            GatedDelta(
                x=x,
                gates=gates,
                out=out,
                decay=decay,
                decay_bias=decay_bias,
                heads=heads,
                state=state,
                offset=offset,
            )
        )
        return out

    def state_space(
        self,
        x: Tensor,
        gates: Tensor,
        *,
        decay: Vector,
        step_bias: Vector,
        skip: Vector,
        steps: tuple[float, float],
        heads: DeltaHeads,
        state: CacheIndex,
        offset: int,
    ) -> Tensor:
        """A state space; see `StateSpace`: fp32 [tokens, value heads * value_dim]. `steps`: the least and the most."""
        out = Tensor(x.rows, heads.values * heads.value_dim, 4)
        self.operations.append(
            StateSpace(
                x=x,
                gates=gates,
                out=out,
                decay=decay,
                decay_bias=step_bias,
                skip=skip,
                least_step=steps[0],
                most_step=steps[1],
                heads=heads,
                state=state,
                offset=offset,
            )
        )
        return out

    def key_delta(
        self,
        x: Tensor,
        b: Tensor,
        decays: Tensor,
        *,
        decay: Vector,
        decay_bias: Vector,
        heads: DeltaHeads,
        state: CacheIndex,
        offset: int,
    ) -> Tensor:
        """The delta rule with decays by dimension of the keys, from `decays`, fp32 [tokens, value heads * key_dim]; see
        `KeyDelta`: fp32 [tokens, value heads * value_dim]."""
        gates, out = (Tensor(x.rows, heads.values * each, 4) for each in (1 + heads.key_dim, heads.value_dim))
        self.operations.append(KeyDecays(b=b, x=decays, out=gates, decay=decay, bias=decay_bias))
        self.operations.append(KeyDelta(x=x, gates=gates, out=out, heads=heads, state=state, offset=offset))
        return out

    def gated_head_norm(
        self, x: Tensor, gate: Tensor, weight: Vector, *, eps: float, heads: int, by: NormGate = "silu"
    ) -> Operand:
        """The norm of each head of `x` times silu or sigmoid of `gate`: bf16 [tokens, columns of x]."""
        out = Operand(x.rows, x.cols, 2)
        self.operations.append(GatedHeadNorm(x=x, gate=gate, out=out, weight=weight, eps=eps, heads=heads, by=by))
        return out

    def sigmoid_gate(self, x: Operand, gate: Tensor) -> None:
        """Multiply `x`, bf16, by sigmoid(gate), fp32 of the same shape, in place. Raises `ValueError` if a product has
        read `x` in int8, which would stay as it is."""
        if any(made is x for made, _ in self._quantized):
            raise ValueError("a gate must multiply an operand before products read it")
        self.operations.append(SigmoidGate(x=x, gate=gate))
