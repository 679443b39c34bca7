"""Every family's forward pass: fused as unfused, and native code as near to exact numbers as its roundings are."""

from pathlib import Path

import numpy as np
import pytest
import torch
from driven_programs import answers, logprobs
from numaserve.kernels import Team
from numaserve.workers.interface.settings import ModelSettings, WeightFormats
from numaserve.workers.program.native import make_program
from numaserve.workers.program.reference.numbers import DECLARED, Numbers
from numaserve.workers.program.reference.program import ReferenceProgram

from tests.support import checkpoints
from tests.support.families.table import TEXT
from tests.support.loaded import load_part
from tests.support.recorded_programs import LIMITS
from tests.support.reference_group import recorded

CASES = [*TEXT]
EXACT = Numbers(torch.float64, rounded=False)
AS_IT_IS = ModelSettings()
IN_INT8 = ModelSettings(formats=WeightFormats("int8", "int8"))
IN_GROUPS = ModelSettings(formats=WeightFormats("int4", activations="int8"))


@pytest.mark.parametrize(
    ("case", "settings"),
    # The formats of a case in turn: what is fused depends on them, and not on the family.
    [
        pytest.param(case, each, id=f"{case}-{name}")
        for index, case in enumerate(CASES)
        for name, each in [("as it is", AS_IT_IS), [("int8", IN_INT8), ("in groups", IN_GROUPS)][index % 2]]
    ],
)
def test_a_family_is_computed_as_its_operations_say(
    case: str, settings: ModelSettings, tmp_path: Path, team: Team
) -> None:
    loaded = load_part(
        checkpoints.save(checkpoints.random_model(case), tmp_path), team, [1], settings=settings, positions=512
    )
    b = recorded(loaded, LIMITS)
    native, unfused = (
        answers(make_program(b.setup, each, team, weights=loaded.native)) for each in (b.fused(), b.operations)
    )
    assert native == unfused
    fused, exact = (
        logprobs(answers(ReferenceProgram(b.setup, operations, loaded.native, numbers)))
        for operations, numbers in ((b.fused(), DECLARED), (b.operations, EXACT))
    )
    # Roundings that fall otherwise come to as much again; of experts, one that falls to the other side of a choice.
    size = np.linalg.norm(fused - exact)
    assert 0 < size < 0.2 * np.linalg.norm(exact)
    assert np.linalg.norm(logprobs(native) - exact) < 2 * size
