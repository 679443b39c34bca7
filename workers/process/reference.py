"""The reference backend of a rank."""

import os
from collections.abc import Sequence

import torch
from numaserve.workers.interface.protocol import Launch
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.planning.reference import matrices_of
from numaserve.workers.program.ops.base import Operation
from numaserve.workers.program.reference.program import ReferenceProgram
from numaserve.workers.program.setup import ProgramSetup
from numaserve.workers.weights.weights import Weights


def make_reference(
    setup: ProgramSetup,
    operations: Sequence[Operation],
    launch: Launch,
    part: RankPart,
    weights: Weights,
    *,
    lender: ReferenceProgram | None = None,
) -> ReferenceProgram:
    """Return a Program that torch runs on the rank's cores. It rounds wherever the kernels' operations round."""
    cpus = launch.cpus[launch.rank]
    # The thread team pins this thread to one core, and torch's threads, which this thread starts, would all share that
    # core.
    if min(cpus) >= 0:
        os.sched_setaffinity(0, cpus)
    torch.set_num_threads(len(cpus))
    program = ReferenceProgram(setup, operations, weights.native, lender=lender)
    program.expand(matrices_of(part))
    return program
