"""Two Programs of a rank, each with limits of its own."""

from pathlib import Path

import numpy as np
import pytest
from numaserve.kernels import Team
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import Launch, SamplingParams, SlotInit
from numaserve.workers.interface.settings import Backend
from numaserve.workers.process.node import NodeContext
from numaserve.workers.process.rank_program import RankProgram, RankWeights
from numaserve.workers.program.slots import END_SAMPLE, slot_settings

from tests.support.same_bits import save_tiny_model

WIDE = Capacity.of_program(max_step_tokens=64, max_logit_rows=16, max_slots=3, pages_per_slot=4, num_pages=12)
NARROW = Capacity.of_program(max_step_tokens=8, max_logit_rows=2, max_slots=2, pages_per_slot=1, num_pages=3)


def step(program: RankProgram, tokens: int) -> int:
    """The token that is sampled after a prompt of as many tokens."""
    program.program.init_slot(0, slot_settings(SlotInit(SamplingParams(temperature=0.0))))
    program.program.append_pages(0, list(range(program.limits.pages_per_slot)))
    row = np.array([[0, 0, tokens, 0, END_SAMPLE, 0]], np.int32)
    ((_, sample, *_),), *_ = program.program.step(row, np.arange(3, 3 + tokens, dtype=np.int32), np.empty(0, np.int32))
    assert sample is not None
    return sample[0]


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_second_program_has_its_own_limits(backend: Backend, tmp_path: Path, team: Team) -> None:
    model = save_tiny_model("llama", tmp_path / "model")
    launch = Launch(0, 1, str(model), [[-1]], [0], [1], WIDE, -1, 0, 5.0, backend=backend)
    node, held = NodeContext(0, team, None), RankWeights(launch)
    held.load(node, lambda done: None)
    wide, narrow = (RankProgram(held, held.config.decoder, node, limits) for limits in (WIDE, NARROW))
    assert (wide.limits, narrow.limits) == (WIDE, NARROW)
    (whole, *_), (part, *_) = wide.program.kv_memory, narrow.program.kv_memory
    assert whole[1] == 4 * part[1] > 0
    assert step(wide, 8) == step(narrow, 8)
    assert step(wide, 9) >= 0
    with pytest.raises(ValueError, match="the step has more tokens than the limit of a step"):
        step(narrow, 9)
