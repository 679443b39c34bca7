"""The first half of a low-rank update of a product (LoRA; Hu et al., 2021). The product adds the other half itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.workers.program.buffers import Operand, Tensor
from numaserve.workers.program.cost import OperationCost
from numaserve.workers.program.ops.base import Adapters, Operation, Reads, Writes
from numaserve.workers.program.setup import ProgramSetup


@dataclass(frozen=True, kw_only=True)
class Shrink(Operation):
    """out, fp32 [tokens, parts * rank] = scale * x · Aᵀ of the adapter of each token's sequence, for each part.

    Rows without an adapter are left as they are. It is not run in steps that have no other rows. `x` is bf16 also where
    the product itself takes int8.
    """

    x: Reads[Operand]
    out: Writes[Tensor]
    adapters: Adapters

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Nothing is done for sequences without an adapter. The terms of the product have the work for the others."""
        return []
