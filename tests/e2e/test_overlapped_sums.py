"""Promise: sums over ranks that overlap products have the same bits as those that come after them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import transformers as hf

from tests.support import checkpoints
from tests.support.rank_group import RankGroup
from tests.support.same_bits import make_group, random_requests, scheduler_config
from tests.support.traffic import Answer, Request, Traffic

TOKENS = 500
# A sum of that many rows of 288 columns is so large that ranks divide it.
CONFIGS: dict[str, Callable[[], hf.PretrainedConfig]] = {
    "llama": lambda: hf.LlamaConfig(**checkpoints.sizes(288, 9, 3, 160, head_dim=32)),
    "gemma2": lambda: hf.Gemma2Config(**checkpoints.sizes(288, 9, 3, 160, head_dim=32, sliding_window=100)),
    "qwen2_moe": lambda: hf.Qwen2MoeConfig(
        **checkpoints.sizes(288, 9, 3, 160, moe_intermediate_size=64, shared_expert_intermediate_size=72),
        num_experts=6,
        num_experts_per_tok=2,
    ),
}


def long_request(max_new_tokens: int) -> Request:
    request = random_requests()[-1]
    return replace(request, prompt=request.prompt[:TOKENS], max_new_tokens=max_new_tokens)


def answers(group: RankGroup, step_tokens: int) -> list[Answer]:
    traffic = Traffic(group, scheduler_config(max_step_tokens=step_tokens))
    found = traffic.serve([long_request(6)])
    assert len(traffic.plans[0].seqs[0].tokens) == min(step_tokens, TOKENS)
    return found


def group_of(name: str, tp: int, folder: Path, threads: int) -> RankGroup:
    return make_group(checkpoints.save(checkpoints.build(CONFIGS[name]()), folder), tp, threads=threads)


@pytest.mark.parametrize(("tp", "threads"), [(3, 3), (5, 1)])
@pytest.mark.parametrize("name", CONFIGS)
def test_sums_of_a_long_step_have_the_bits_of_short_ones(name: str, tp: int, threads: int, tmp_path: Path) -> None:
    with group_of(name, tp, tmp_path, threads) as group:
        assert answers(group, 512) == answers(group, 64)


def test_a_profile_tells_the_product_from_the_sum(tmp_path: Path) -> None:
    with group_of("llama", 3, tmp_path, 1) as group:
        Traffic(group, scheduler_config()).serve([long_request(1)])
        profiles = group.profile()
    for profile in profiles:
        costs = {cost.name: cost for cost in profile.operations}
        assert costs["linear_partial"].ns > 0 < costs["add_all_reduce"].ns
        assert costs["linear_partial"].wait_ns == 0
