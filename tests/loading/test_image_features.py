"""Features of tiles, on one to three ranks of the reference, next to those of transformers."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from numaserve.kernels import Team
from numaserve.workers.interface.capacity import PAGE_SIZE, Capacity
from numaserve.workers.interface.protocol import SamplingParams, SlotInit
from numaserve.workers.layers.vision import FEATURES, PATCHES
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.reference.numbers import DECLARED, Numbers
from numaserve.workers.program.reference.program import ReferenceProgram
from numaserve.workers.program.reference.ranks import Group, Member
from numaserve.workers.program.setup import ProgramSetup, Ranks
from numaserve.workers.program.slots import slot_settings

from tests.support import checkpoints, vision
from tests.support.loaded import Loaded, load_part

Floats = npt.NDArray[np.float32]
EXACT = Numbers(torch.float64, rounded=False)
TILES = 2
ALLOWED = 1.1


def of_transformers(folder: Path, values: Floats, dtype: torch.dtype) -> Floats:
    """The features of tiles, fp32 [tiles * rows, hidden], of values [tiles, 3, side, side]."""
    model = checkpoints.hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype).eval()
    with torch.no_grad():
        (features,) = model.get_image_features(torch.from_numpy(values)[None]).pooler_output
    return features.float().numpy()


def of_ranks(group: Sequence[Loaded], values: Floats, numbers: Numbers = DECLARED) -> list[Floats]:
    """The same on each rank."""
    met = Group(len(group))

    def run(loaded: Loaded) -> Floats:
        member = Member(met, loaded.part.rank)
        return member.run(lambda: _features(loaded, values, numbers, member))

    with ThreadPoolExecutor(len(group)) as threads:
        return list(threads.map(run, group))


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


@pytest.mark.parametrize("case", vision.CASES)
def test_one_to_three_ranks_are_as_close_to_fp32_as_transformers_in_bf16(case: str, tmp_path: Path, team: Team) -> None:
    model = checkpoints.build(vision.CASES[case]())
    folder = vision.save(model, tmp_path)
    values = vision.values_of(vision.random_tiles(model.config, TILES))
    wide = of_transformers(folder, values, torch.float32)
    yardstick = np.abs(of_transformers(folder, values, torch.bfloat16) - wide).mean()
    for tp in (1, 2, 3):
        group = [load_part(folder, team, [1] * tp, rank) for rank in range(tp)]
        exact, rounded = of_ranks(group, values, EXACT), of_ranks(group, values)
        for rank in range(tp):
            assert np.abs(exact[rank] - wide).mean() <= 0.3 * yardstick, tp  # only the features are rounded
            np.testing.assert_array_equal(rounded[rank], rounded[0])
        assert np.abs(rounded[0] - wide).mean() <= ALLOWED * yardstick, tp
