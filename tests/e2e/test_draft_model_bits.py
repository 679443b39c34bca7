"""A draft model in the workers changes no bit, and reads all that the served model has read."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from numaserve.workers.interface.protocol import TO_BE_DRAFTED, DraftWork, SeqPlan, SlotInit, StepPlan

from tests.support.drafters import NoDrafters
from tests.support.rank_group import RankGroup
from tests.support.same_bits import (
    FEWEST_PAGES,
    GREEDY,
    few_requests,
    make_group,
    random_requests,
    save_tiny_model,
    scheduler_config,
    ways_to_serve,
)
from tests.support.traffic import Traffic, assert_serves, each_alone

DRAFTED = "draft_model"


def drafted(group: RankGroup, *, ahead: int = 1, **changes: object) -> Traffic:
    return Traffic(group, scheduler_config(worker_drafter=DRAFTED, **changes), ahead=ahead, drafters=NoDrafters())


def plans_behind_drafts(traffic: Traffic) -> int:
    """The number of plans with draft tokens after tokens that only the workers knew."""
    return sum(any(seq.from_previous and seq.tokens for seq in plan.seqs) for plan in traffic.plans)


@pytest.fixture(scope="module")
def twins(tp: int, isa: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankGroup]:
    """A model that is its own draft model."""
    model = save_tiny_model("llama", tmp_path_factory.mktemp("llama"))
    with make_group(model, tp, isa=isa, draft_model=model) as group:
        yield group


def test_a_model_that_drafts_for_itself_is_always_right(twins: RankGroup) -> None:
    # Penalties are the served model's alone, so that draft tokens of others are wrong at times.
    requests = [each for each in random_requests() if not each.sampling.has_penalties]
    alone = each_alone(twins, scheduler_config(), requests)
    for ahead, changes in ways_to_serve(twins):
        traffic = drafted(twins, ahead=ahead, **changes)
        assert_serves(traffic, requests, alone)
        assert traffic.scheduler.drafted[DRAFTED, True] > 200
        assert traffic.scheduler.drafted[DRAFTED, False] == 0
        assert (plans_behind_drafts(traffic) > 10) == (ahead == 2)


def test_penalties_and_a_draft_model_go_together(twins: RankGroup) -> None:
    requests = random_requests()
    alone = each_alone(twins, scheduler_config(), requests)
    traffic = drafted(twins, ahead=2, enable_prefix_cache=True)
    assert traffic.serve(requests) == alone
    assert min(traffic.scheduler.drafted[DRAFTED, right] for right in (True, False)) > 10


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", ["gemma2", "deepseek_v3"])
def test_a_draft_model_of_another_kind_changes_no_bit(name: str, tp: int, tmp_path: Path) -> None:
    draft = save_tiny_model("llama", tmp_path / "draft")
    requests = few_requests()
    with make_group(save_tiny_model(name, tmp_path / name), tp, draft_model=draft) as group:
        alone = each_alone(group, scheduler_config(), requests)
        for ahead in (1, 2):
            traffic = drafted(group, ahead=ahead, enable_prefix_cache=True, num_pages=FEWEST_PAGES)
            assert traffic.serve(requests) == alone
        assert traffic.scheduler.drafted[DRAFTED, False] > 50


def test_work_that_does_not_fit_the_plan_is_refused(twins: RankGroup) -> None:
    begin = SeqPlan(0, 0, [5, 6, TO_BE_DRAFTED], pages=[0], init=SlotInit(GREEDY), sample=True)
    works: list[list[DraftWork]] = [[DraftWork(1)], [DraftWork(-1)], [DraftWork(0, [7])], []]
    for step, work in enumerate(works):
        twins.send(StepPlan(step, [begin], drafts=[1], draft_work=work))
        assert len({each.message for each in twins.receive_failures()}) == 1
    result = twins.run(StepPlan(9, [begin], drafts=[1], draft_work=[DraftWork(0)]))
    assert len(result.seqs[0].following) == 1
