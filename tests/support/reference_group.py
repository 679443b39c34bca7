"""Loaded weights run by the reference: any number of ranks, as threads, over one sequence."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import PAGE_SIZE, SamplingParams, SlotInit
from numaserve.workers.program.ops.exchange import Sample
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.reference.numbers import Numbers
from numaserve.workers.program.reference.program import ReferenceProgram
from numaserve.workers.program.reference.ranks import Group, Member
from numaserve.workers.program.setup import ProgramSetup, Ranks
from numaserve.workers.program.slots import slot_settings

from tests.support.loaded import Loaded

Floats = npt.NDArray[np.float32]
EXACT = Numbers(rounded=False)
_SLOT_BYTES = 1 << 30


def recorded(loaded: Loaded, limits: Capacity) -> ProgramBuilder:
    """The rank's forward pass."""
    partition = loaded.part.partition
    ranks = Ranks(partition.shares, loaded.part.rank, _SLOT_BYTES)
    b = ProgramBuilder(ProgramSetup(loaded.config.decoder.shape(loaded.part), limits, ranks, partition.settings))
    loaded.config.decoder.forward(b, loaded.part)
    return b


def run_group(group: Sequence[Loaded], tokens: npt.NDArray[np.int64], numbers: Numbers = EXACT) -> list[Floats]:
    """Each rank's logits of all ranks' parts of the vocabulary, after every token.

    Shape: [tokens, vocabulary].
    """
    return on_each_rank(group, lambda loaded, member: _logits(loaded, tokens, numbers, member))


def on_each_rank(group: Sequence[Loaded], work: Callable[[Loaded, Member], Floats]) -> list[Floats]:
    """Return the result of `work` on each rank, while all ranks run and exchange."""
    met = Group(len(group))

    def run(loaded: Loaded) -> Floats:
        member = Member(met, loaded.part.rank)
        return member.run(lambda: work(loaded, member))

    with ThreadPoolExecutor(len(group)) as threads:
        return list(threads.map(run, group))


def _logits(loaded: Loaded, tokens: npt.NDArray[np.int64], numbers: Numbers, member: Member) -> Floats:
    pages = -(-len(tokens) // PAGE_SIZE)
    b = recorded(
        loaded, Capacity.of_program(len(tokens), len(tokens), max_slots=1, pages_per_slot=pages, num_pages=pages)
    )
    operations = b.fused()
    program = ReferenceProgram(b.setup, operations, loaded.native, numbers, member)
    program.init_slot(0, slot_settings(SlotInit(SamplingParams())))
    program.append_pages(0, range(b.limits.num_pages))
    # A wanted next token, whichever, has the logits of its row computed.
    plan, ids = np.array([[0, 0, len(tokens), 0, 0, len(tokens)]], np.int32), tokens.astype(np.int32)
    program.step(plan, ids, ids)
    (sample,) = (each for each in operations if isinstance(each, Sample))
    logits: Floats = program.values[sample.logits].numpy()
    return logits
