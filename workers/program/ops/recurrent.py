"""Operations that keep a state of each sequence from step to step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from numaserve.workers.program.buffers import Tensor
from numaserve.workers.program.caches import CacheIndex
from numaserve.workers.program.cost import FP32, OperationCost, of_columns
from numaserve.workers.program.ops.base import Operation, Reads, Vector, Writes
from numaserve.workers.program.setup import ProgramSetup

ConvActivation = Literal["none", "silu"]


@dataclass(frozen=True, kw_only=True)
class CausalConv(Operation):
    """A convolution of each column over the last `taps` tokens of its sequence: out, fp32 [tokens, columns].

    `weight` is [columns, taps], the oldest tap first; `bias` is [columns]. `state` has the inputs of the last taps - 1
    tokens of each slot, fp32. Zeros precede a sequence.
    """

    x: Reads[Tensor]
    out: Writes[Tensor]
    weight: Vector
    bias: Vector | None
    taps: int
    activation: ConvActivation
    state: CacheIndex

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Rows are read and written, and the state of each sequence too."""
        return [of_columns("causal_conv", self.x.cols, 2 * self.x.cols * FP32)]
