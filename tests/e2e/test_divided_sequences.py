"""Ranks that divide the latents of long sequences: the same bits as when each reads all, from a part of the bytes."""

from pathlib import Path

import pytest
from numaserve.workers.interface.protocol import RankProfile

from tests.support.played_drafts import played
from tests.support.rank_group import RankGroup
from tests.support.same_bits import (
    CONTEXT,
    FEW_PAGES,
    make_group,
    random_requests,
    save_tiny_model,
    scheduler_config,
)
from tests.support.traffic import Answer, Traffic, each_alone

FROM = 150  # tokens: some requests begin below and end above
FROM_OF_FEW = 60  # so that sequences are divided for draft tokens too: a few times as many
NEVER = CONTEXT + 1
QUERY_BYTES = 3 * (64 + 32) * 2  # of a token: 3 heads of a latent and the rotated part of a key, in bf16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("deepseek_v3", tmp_path_factory.mktemp("deepseek_v3"))


@pytest.mark.parametrize("name", ["deepseek_v3", "kimi_linear"])
@pytest.mark.parametrize("tp", [2, 3])
def test_dividing_long_sequences_changes_no_bit(name: str, isa: str, tp: int, tmp_path: Path) -> None:
    model = save_tiny_model(name, tmp_path)
    requests = [each for each in random_requests() if len(each.prompt) + each.max_new_tokens >= FROM]
    with make_group(model, tp, isa=isa, context_parallel_from=NEVER) as group:
        whole = Traffic(group, scheduler_config()).serve(requests)
        assert positions(group, "divided_attention") == [0] * tp
    with make_group(model, tp, isa=isa, context_parallel_from=FROM) as group:
        answers: list[list[Answer]] = [
            each_alone(group, scheduler_config(), requests),
            Traffic(group, scheduler_config(max_step_tokens=64), ahead=2).serve(requests),
            Traffic(group, scheduler_config(num_pages=FEW_PAGES)).serve(requests),
        ]
        assert all(positions(group, "divided_attention"))
    assert all(each == whole for each in answers)


@pytest.mark.parametrize("tp", [2, 3])
def test_dividing_sequences_with_draft_tokens_changes_no_bit(model: Path, isa: str, tp: int) -> None:
    requests = [each for each in random_requests() if len(each.prompt) + each.max_new_tokens >= FROM]
    with make_group(model, tp, isa=isa, context_parallel_from=FROM_OF_FEW) as group:
        alone = each_alone(group, scheduler_config(), requests)
        read, computed = amounts(group)
        traffic = Traffic(group, scheduler_config(), ahead=2, drafters=played(requests, alone, wrong=6))
        assert traffic.serve(requests) == alone
        assert min(traffic.scheduler.drafted["played", right] for right in (True, False)) > 20
        all_read, all_computed = amounts(group)
    # What is read is read once for all new tokens of a sequence.
    assert (all_computed - computed) * read > 1.2 * computed * (all_read - read) > 0


def test_two_ranks_read_half_of_a_divided_sequence_each(model: Path) -> None:
    request = random_requests()[-1]  # 600 tokens: blocks of 256, 256 and 88, and each new one
    length, steps = len(request.prompt), request.max_new_tokens - 1
    with make_group(model, 2, context_parallel_from=FROM) as group:
        Traffic(group, scheduler_config()).serve([request])
        new = sum(length + step + 1 - 512 for step in range(steps))
        assert positions(group, "divided_attention") == [256 * steps + new, 256 * steps]
        assert moved(group, "gather_queries") == [2 * QUERY_BYTES * steps] * 2  # read and written


def moved(group: RankGroup, operation: str) -> list[int]:
    """Bytes that each rank has moved in an operation, of one layer."""
    return [
        each.moved_bytes * profile.steps // each.calls
        for profile in group.profile()
        for each in profile.operations
        if each.name == operation
    ]


def amounts(group: RankGroup) -> tuple[int, int]:
    """Bytes read and operations computed where sequences are divided, of the first rank."""
    (found,) = [each for each in group.profile()[0].operations if each.name == "divided_attention"]
    return found.bytes, found.flops


def positions(group: RankGroup, operation: str) -> list[int]:
    """Positions of the latent cache that each rank has read in an operation, of one layer."""
    return [_position_count(profile, operation) for profile in group.profile()]


def _position_count(profile: RankProfile, operation: str) -> int:
    (found,) = [each for each in profile.operations if each.name == operation]
    layers = found.calls // profile.steps
    return found.bytes // (layers * (64 + 32) * 2)  # a latent, and the rotated part of a key, in bf16
