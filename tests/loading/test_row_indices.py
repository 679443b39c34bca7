"""Indices of a step's rows, as operations read them natively and in the reference."""

from typing import get_args

import numpy as np
import pytest
from driven_programs import AnyProgram, RandomWeights, both, packed, widened
from numaserve.kernels import Team
from numaserve.workers.interface.protocol import SamplingParams, SlotInit
from numaserve.workers.program.setup import RankShape
from numaserve.workers.program.slots import END_SAMPLE, RowIndex, slot_settings

from tests.support.recorded_programs import HIDDEN, VOCAB, Part

# The rows of two steps: two prompts, then the next token of the first one and more of the second one.
TOKENS = [[7, 8, 9, 4, 5, 6], [-1, 3, 2]]  # -1: the token that was sampled
PLANS = [[(0, 0, 3, 0, END_SAMPLE, 0), (1, 0, 3, 0, 0, 0)], [(0, 3, 1, 1, 0, 0), (1, 3, 2, 0, 0, 0)]]
EXPECTED: dict[RowIndex, list[list[int]]] = {
    "token": TOKENS,
    "position": [[0, 1, 2, 0, 1, 2], [3, 3, 4]],
    "type": [[0, 0, 0, 0, 0, 1], [0, 1, 1]],
    "time": [[0, 1, 2, 0, 0, 0], [3, 0, 2]],
    "height": [[0, 1, 2, 0, 0, 1], [3, 1, 2]],
    "width": [[0, 1, 2, 0, 1, 0], [3, 1, 2]],
}
GRID = [0, 2, 2]  # of the image of the second prompt: its first position, rows and columns


def step(program: AnyProgram, plan: list[tuple[int, ...]], tokens: list[int]) -> list[int]:
    """Run a step and return the sampled tokens."""
    literal = np.array([token for token in tokens if token >= 0], np.int32)
    rows, *_ = program.step(np.array(plan, np.int32), literal, np.empty(0, np.int32))
    return [sample[0] for _, sample, *_ in rows]


@pytest.mark.parametrize("index", get_args(RowIndex))
def test_operations_read_any_index_of_rows(index: RowIndex, team: Team) -> None:
    w = RandomWeights(team)
    b = Part(weights=w).builder(RankShape(HIDDEN, [0, VOCAB]))
    numbered = packed(team, np.repeat(np.arange(VOCAB, dtype=np.float32)[:, None], HIDDEN, 1))
    nothing = packed(team, np.zeros((VOCAB, HIDDEN), np.float32))
    found = b.rounded(b.embed(nothing, first_row=0, more=[(index, numbered, 0)]))
    b.keep("indices", found)
    b.sample(b.lm_head(found, w.matrix(VOCAB, HIDDEN)))
    for program, outside in both(b, team):
        greedy = SamplingParams(temperature=0.0)
        for slot, init in enumerate((SlotInit(greedy), SlotInit(greedy, second_text=2, grids=GRID))):
            program.init_slot(slot, slot_settings(init))
            program.append_pages(slot, [slot])
        sampled = -1
        for plan, tokens, expected in zip(PLANS, TOKENS, EXPECTED[index], strict=True):
            (sampled,) = step(program, plan, tokens) or [sampled]
            rows = widened(outside.kept("indices")[: len(tokens)])
            assert rows[:, 0].tolist() == [sampled if each < 0 else each for each in expected]
