"""The first half of a low-rank update of a product (LoRA; Hu et al., 2021). The product adds the other half itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.workers.program.buffers import Operand, Tensor
from numaserve.workers.program.cost import OperationCost
from numaserve.workers.program.handles import TILE_ROWS, round_up
from numaserve.workers.program.ops.base import Adapters, Operation, Reads, Writes
from numaserve.workers.program.setup import ProgramSetup


def shrunk_columns(adapters: Adapters) -> int:
    """Return the columns between both products: whole panels for each part."""
    return adapters.parts * round_up(adapters.rank, TILE_ROWS)


@dataclass(frozen=True, kw_only=True)
class Shrink(Operation):
    """out [tokens, `shrunk_columns`] = scale * x · Aᵀ of the adapter of each token's sequence, for each part.

    The values are in the form that the product of the instruction set takes, with 4 bytes for each. Rows without an
    adapter are left as they are. It is not run in steps that have no other rows. `x` is bf16 also where the product
    itself takes int8.
    """

    x: Reads[Operand]
    out: Writes[Tensor]
    adapters: Adapters

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Nothing is done for sequences without an adapter. The terms of the product have the work for the others."""
        return []
