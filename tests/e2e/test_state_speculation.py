"""Draft tokens change no bit of models with recurrent layers, whose states must go back by those that are rejected."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.drafters import NoDrafters
from tests.support.played_drafts import played
from tests.support.predicting import save_follower, save_predicting
from tests.support.rank_group import RankGroup
from tests.support.same_bits import (
    FEW_PAGES,
    FEWEST_PAGES,
    GREEDY,
    few_requests,
    make_group,
    random_requests,
    save_tiny_model,
    scheduler_config,
)
from tests.support.traffic import Request, Traffic, assert_serves, each_alone

FAMILIES = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
SNAPSHOTS, DRAFTS = 6, 9
STATES = {"num_snapshots": SNAPSHOTS, "max_drafts": DRAFTS}


def ways(few_pages: int) -> tuple[dict[str, Any], ...]:
    """Return limits without snapshots, with them, and with too few pages for all sequences."""
    cached: dict[str, Any] = {"enable_prefix_cache": True, "num_snapshots": SNAPSHOTS}
    return {}, {"max_step_tokens": 64}, cached, {**cached, "num_pages": few_pages}


@pytest.fixture(scope="module", params=["qwen3_5", "lfm2", "granite_hybrid"])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def group(tp: int, isa: str, family: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankGroup]:
    model = save_tiny_model(family, tmp_path_factory.mktemp("hybrid"))
    with make_group(model, tp, isa=isa, **STATES) as group:
        yield group


@pytest.mark.spread("isa")
@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("wrong", [2, 6])
def test_draft_tokens_of_the_front_end_change_no_bit(group: RankGroup, ahead: int, wrong: int) -> None:
    requests = random_requests()
    alone = each_alone(group, scheduler_config(), requests)
    for changes in ways(FEW_PAGES):
        config = scheduler_config(max_drafts=DRAFTS, **changes)
        traffic = Traffic(group, config, ahead=ahead, drafters=played(requests, alone, wrong=wrong))
        assert_serves(traffic, requests, alone)
        assert min(traffic.scheduler.drafted["played", right] for right in (True, False)) > 20


def mtp(group: RankGroup, *, ahead: int, **changes: Any) -> Traffic:
    config = scheduler_config(worker_drafter="mtp", max_drafts=DRAFTS, **changes)
    return Traffic(group, config, ahead=ahead, drafters=NoDrafters())


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_layer_that_is_mostly_wrong_changes_no_bit(name: str, tp: int, tmp_path: Path) -> None:
    requests = few_requests()
    with make_group(save_predicting(name, tmp_path), tp, mtp=True, **STATES) as group:
        alone = each_alone(group, scheduler_config(), requests)
        for ahead in (1, 2):
            for changes in ways(FEWEST_PAGES):
                traffic = mtp(group, ahead=ahead, **changes)
                assert_serves(traffic, requests, alone)
        assert traffic.scheduler.drafted["mtp", False] > 50


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_layer_that_goes_by_hidden_states_alone_is_always_right(name: str, tp: int, tmp_path: Path) -> None:
    requests = [
        Request([token % 96 for token in each.prompt], GREEDY, each.max_new_tokens) for each in random_requests()
    ]
    right = wrong = 0
    with make_group(save_follower(name, tmp_path), tp, mtp=True, **STATES) as group:
        alone = each_alone(group, scheduler_config(), requests)
        for ahead, changes in enumerate(ways(FEW_PAGES)):
            traffic = mtp(group, ahead=1 + ahead % 2, **changes)
            assert_serves(traffic, requests, alone)
            right += traffic.scheduler.drafted["mtp", True]
            wrong += traffic.scheduler.drafted["mtp", False]
    assert right > 500
    assert wrong == 0


@pytest.mark.parametrize("tp", [1, 2])
def test_a_draft_model_changes_no_bit(tp: int, tmp_path: Path) -> None:
    draft, requests = save_tiny_model("llama", tmp_path / "draft"), few_requests()
    with make_group(save_tiny_model("qwen3_5", tmp_path / "served"), tp, draft_model=draft, **STATES) as group:
        alone = each_alone(group, scheduler_config(), requests)
        for ahead in (1, 2):
            config = scheduler_config(worker_drafter="draft_model", max_drafts=DRAFTS, **ways(FEWEST_PAGES)[3])
            traffic = Traffic(group, config, ahead=ahead, drafters=NoDrafters())
            assert_serves(traffic, requests, alone)
        assert traffic.scheduler.drafted["draft_model", False] > 50
