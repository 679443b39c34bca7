"""Features of tiles by ranks of the reference."""

from collections.abc import Sequence

import numpy as np
from numaserve.workers.interface.capacity import PAGE_SIZE, Capacity
from numaserve.workers.interface.protocol import SamplingParams, SlotInit
from numaserve.workers.layers.vision import FEATURES, PATCHES
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.reference.numbers import DECLARED, Numbers
from numaserve.workers.program.reference.program import ReferenceProgram
from numaserve.workers.program.reference.ranks import Member
from numaserve.workers.program.setup import ProgramSetup, Ranks
from numaserve.workers.program.slots import slot_settings

from tests.support.loaded import Loaded
from tests.support.reference_group import Floats, on_each_rank


def of_ranks(group: Sequence[Loaded], values: Floats, numbers: Numbers = DECLARED) -> list[Floats]:
    """The features of tiles on each rank, fp32 [tiles * rows, hidden], of values [tiles, 3, side, side]."""
    return on_each_rank(group, lambda loaded, member: _features(loaded, values, numbers, member))


def _features(loaded: Loaded, values: Floats, numbers: Numbers, member: Member) -> Floats:
    tower = loaded.config.decoder.tower
    assert tower is not None
    pages, partition = -(-tower.patches // PAGE_SIZE), loaded.part.partition
    limits = Capacity.of_program(tower.patches, 0, 1, pages, pages)
    ranks = Ranks(partition.shares, loaded.part.rank, 1 << 30)
    b = ProgramBuilder(ProgramSetup(tower.shape(loaded.part), limits, ranks, partition.settings))
    tower.forward(b, loaded.part)
    program = ReferenceProgram(b.setup, b.fused(), loaded.native, numbers, member)
    program.init_slot(0, slot_settings(SlotInit(SamplingParams())))
    program.append_pages(0, range(pages))
    found = []
    for tile in values:
        program.outside.given(PATCHES)[:] = patches(tile, tower.embedding.patch)
        plan, tokens = np.array([[0, 0, tower.patches, 0, 0, 0]], np.int32), np.zeros(tower.patches, np.int32)
        program.step(plan, tokens, np.empty(0, np.int32))
        bits = program.outside.kept(FEATURES)[: tower.features].astype(np.uint32)
        found.append((bits << 16).view(np.float32))
    return np.concatenate(found)


def patches(tile: Floats, patch: int) -> Floats:
    """The patches of a tile, fp32 [3, side, side], row by row, each by channel, then row, then column."""
    side = tile.shape[1] // patch
    blocks = tile[:, : side * patch, : side * patch].reshape(3, side, patch, side, patch)
    return blocks.transpose(1, 3, 0, 2, 4).reshape(side * side, -1)
