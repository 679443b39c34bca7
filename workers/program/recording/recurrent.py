"""Layers with a state of each sequence, in the vocabulary of the Program builder."""

from numaserve.workers.program.buffers import Tensor
from numaserve.workers.program.caches import CacheIndex
from numaserve.workers.program.ops.base import Vector
from numaserve.workers.program.ops.recurrent import CausalConv, ConvActivation
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
        """A convolution of each column over the last `taps` tokens of its sequence: fp32 [tokens, columns].

        `weight` is [columns, taps], the oldest tap first. `state` has room for the last taps - 1 inputs of a slot, fp32
        [taps - 1, columns].
        """
        out = Tensor(x.rows, x.cols, 4)
        self.operations.append(
            CausalConv(x=x, out=out, weight=weight, bias=bias, taps=taps, activation=activation, state=state)
        )
        return out
