"""The operations of each rank of a model, from its configuration alone."""

from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.layers.forward import Forward
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.program.cost import OperationCost
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.setup import ProgramSetup, Ranks

_ANY = 1 << 40  # steps of any size are counted


def rank_operations(model: Forward, part: RankPart) -> list[OperationCost]:
    """Return the cost of a step for a rank, operation by operation in order. Raises `OperatorError` if the checkpoint
    does not support the formats asked for."""
    limits = Capacity.of_program(max_step_tokens=32, max_logit_rows=32, max_slots=1, pages_per_slot=1, num_pages=1)
    ranks, settings = Ranks(part.partition.shares, part.rank, _ANY), part.partition.settings
    setup = ProgramSetup(model.shape(part), limits, ranks, settings)
    builder = ProgramBuilder(setup)
    model.forward(builder, part)
    return builder.costs()
