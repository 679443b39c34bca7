"""The router of a large mixture: ranks divide its rows and exchange logits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numaserve.kernels import Team
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.layers import axes
from numaserve.workers.layers.axes import RouterRows
from numaserve.workers.program.ops.latent import GatherColumns
from numaserve.workers.program.ops.products import Linear
from test_quantized_loading import TOKENS

from tests.support import checkpoints
from tests.support.families.table import WITH_EXPERTS
from tests.support.loaded import load_part
from tests.support.reference_group import recorded, run_group

SIX = (43, 43, 42, 43, 43, 42)
LIMITS = Capacity.of_program(max_step_tokens=8, max_logit_rows=2, max_slots=1, pages_per_slot=1, num_pages=1)
# Those without a gate of the shared experts.
WITH_GATE = ("qwen2_moe", "qwen3_next")
CASES = [case for case in WITH_EXPERTS if case not in WITH_GATE]


@pytest.mark.parametrize(
    ("experts", "hidden", "shares", "expected"),
    [
        (256, 7168, SIX, [64, 64, 32, 32, 32, 32]),  # DeepSeek-R1
        (256, 7168, (64, 64), [256, 256]),
        (128, 4096, SIX, [128] * 6),  # Qwen3-235B-A22B
        (256, 7168, (64,), [256]),
    ],
)
def test_a_router_is_divided_where_that_saves_more_than_it_costs(
    experts: int, hidden: int, shares: tuple[int, ...], expected: list[int]
) -> None:
    found = RouterRows("router", experts, 2 * hidden).divide(shares, cut=1, expert_parallel=False)
    assert [len(part) for part in found] == expected
    if len(set(found)) > 1:
        assert [row for part in found for row in part] == list(range(experts))


@pytest.fixture
def always_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axes, "LEAST_SAVED", 0)


@pytest.mark.usefixtures("always_divided")
@pytest.mark.parametrize("shares", [[1, 1], [4, 1, 2]], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_ranks_that_divide_the_router_compute_what_transformers_does(
    case: str, shares: list[int], tmp_path: Path
) -> None:
    model, team = checkpoints.random_model(case), Team([-1])
    with torch.no_grad():
        expected = model(torch.from_numpy(TOKENS)[None]).logits[0].numpy()
    folder = checkpoints.save(model, tmp_path)
    group = [load_part(folder, team, shares, rank) for rank in range(len(shares))]
    for loaded in group:
        operations = recorded(loaded, LIMITS).operations
        routers = [each.out for each in operations if isinstance(each, Linear) and each.name == "moe_router"]
        assert routers
        assert set(routers) <= {each.message for each in operations if isinstance(each, GatherColumns)}
    for logits in run_group(group, TOKENS):
        np.testing.assert_allclose(logits, expected, atol=3e-4)
