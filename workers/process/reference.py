"""The reference as a rank's backend."""

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
    setup: ProgramSetup, operations: Sequence[Operation], launch: Launch, part: RankPart, weights: Weights
) -> ReferenceProgram:
    """A program that torch runs on the rank's cores. It rounds what the kernels' operations round."""
    cpus = launch.cpus[launch.rank]
    # The thread team keeps this thread on one core; torch's threads, which this one starts, would all share that.
    if min(cpus) >= 0:
        os.sched_setaffinity(0, cpus)
    torch.set_num_threads(len(cpus))
    program = ReferenceProgram(setup, operations, weights.native)
    program.expand(matrices_of(part))
    return program
