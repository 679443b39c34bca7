"""A layer that predicts (MTP) changes no bit, and reads all that it should."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from numaserve.workers.interface.protocol import DraftWork, SeqPlan, SlotInit, StepPlan

from tests.support.drafters import NoDrafters
from tests.support.predicting import START, save_follower, save_predicting, save_twin
from tests.support.rank_group import RankGroup
from tests.support.same_bits import (
    FEWEST_PAGES,
    GREEDY,
    few_requests,
    make_group,
    random_requests,
    scheduler_config,
    ways_to_serve,
)
from tests.support.traffic import Request, Traffic, assert_serves, each_alone

FAMILIES = ("deepseek_v3", "glm4_moe", "glm4_moe_lite")


def drafted(group: RankGroup, *, ahead: int = 1, **changes: object) -> Traffic:
    return Traffic(group, scheduler_config(worker_drafter="mtp", **changes), ahead=ahead, drafters=NoDrafters())


def right_and_wrong(group: RankGroup, requests: list[Request]) -> tuple[int, int]:
    """Draft tokens of `requests`, served in many ways, whose answers are those without draft tokens."""
    alone = each_alone(group, scheduler_config(), requests)
    right = wrong = 0
    for ahead, changes in ways_to_serve(group):
        traffic = drafted(group, ahead=ahead, **changes)
        assert_serves(traffic, requests, alone)
        right += traffic.scheduler.drafted["mtp", True]
        wrong += traffic.scheduler.drafted["mtp", False]
    return right, wrong


@pytest.fixture(scope="module")
def twins(tp: int, isa: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankGroup]:
    model = save_twin("deepseek_v3", tmp_path_factory.mktemp("twin"))
    with make_group(model, tp, isa=isa, mtp=True) as group:
        yield group


@pytest.mark.spread("isa")
def test_one_that_computes_what_the_model_does_is_always_right(twins: RankGroup) -> None:
    requests = [each for each in random_requests() if not each.sampling.has_penalties]
    right, wrong = right_and_wrong(twins, [replace(each, prompt=[START, *each.prompt[1:]]) for each in requests])
    assert right > 1000
    assert wrong == 0


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_one_that_goes_by_hidden_states_alone_is_always_right(name: str, tp: int, tmp_path: Path) -> None:
    requests = [
        Request([token % 96 for token in each.prompt], GREEDY, each.max_new_tokens) for each in random_requests()
    ]
    with make_group(save_follower(name, tmp_path), tp, mtp=True) as group:
        right, wrong = right_and_wrong(group, requests)
    assert right > 1000
    assert wrong == 0


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_one_that_is_mostly_wrong_changes_no_bit(name: str, tp: int, tmp_path: Path) -> None:
    requests = few_requests()
    with make_group(save_predicting(name, tmp_path), tp, mtp=True) as group:
        alone = each_alone(group, scheduler_config(), requests)
        for ahead in (1, 2):
            traffic = drafted(group, ahead=ahead, enable_prefix_cache=True, num_pages=FEWEST_PAGES)
            assert traffic.serve(requests) == alone
        assert traffic.scheduler.drafted["mtp", False] > 50


def test_what_a_refused_plan_wants_read_is_forgotten(tmp_path: Path) -> None:
    tokens = list(range(3, 13))
    with make_group(save_follower("deepseek_v3", tmp_path), 1, mtp=True) as group:

        def begin(step: int, *, work: bool, broken: bool = False) -> StepPlan:
            prompt = [*tokens[:-1], 96 if broken else tokens[-1]]
            seq = SeqPlan(0, 0, prompt, pages=[0], init=SlotInit(GREEDY), sample=True)
            return StepPlan(step, [seq], draft_work=[DraftWork(0)]) if work else StepPlan(step, [seq])

        group.send(begin(0, work=True, broken=True))
        assert len(group.receive_failures()) == 1
        group.run(begin(1, work=False))
        (profile,) = group.profile()
        assert not any(each.ns for each in profile.operations if each.name.startswith("draft "))
