"""The scheduler with a draft model in the workers, which are simulated and check what it reads."""

import random
from collections import Counter

import pytest
from msgspec import UNSET
from numaserve.server.scheduler.policy import StepBudget
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.workers.interface.drafters import MAX_DRAFTS
from numaserve.workers.interface.protocol import (
    KEPT_HIDDEN_STATES,
    TO_BE_DRAFTED,
    SamplingParams,
)
from scheduler_simulation import Service

from tests.support.plan_limits import plan_limits
from tests.support.scheduler_integrity import check_integrity
from tests.support.sequences import sequence
from tests.support.speculating import Rated


def config(**changes: object) -> SchedulerConfig:
    limits = {
        "num_pages": 40,
        "context_length": 64,
        "max_slots": 4,
        "max_step_tokens": 24,
        "max_logit_rows": 24,
        "page_size": 4,
        "worker_drafter": "draft_model",
    }
    return plan_limits(**(limits | changes))  # type: ignore[arg-type]


def answered(service: Service) -> None:
    """The oldest plan is answered by workers that have not waited for it."""
    service.scheduler.paused(0.0)
    service.receive()


@pytest.mark.parametrize("drafter", ["draft_model", "mtp"])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("num_pages", [16, 24, 60])
def test_it_reads_all_that_others_may_find_in_the_cache(num_pages: int, ahead: bool, drafter: str) -> None:
    drawn = random.Random(num_pages)
    service = Service(config(num_pages=num_pages, worker_drafter=drafter), ahead)
    said: list[list[int]] = [[0, 1, 2]]
    for _ in range(300):
        if drawn.random() < 0.15:
            # Conversations that go on: the prompt is what was said before, and a little more.
            prompt = [*drawn.choice(said), drawn.randrange(3)][: drawn.randrange(4, 40)]
            request = service.add(prompt, drawn.randrange(1, 20), penalties=drawn.random() < 0.2)
            said.append(request.tokens[:-1])
        if drawn.random() < 0.03:
            service.restart_workers()
        service.schedule()
        if service.sent and (not ahead or len(service.sent) == 2 or drawn.random() < 0.3):
            answered(service)
        check_integrity(service.scheduler)
    service.drain()
    drafted = service.scheduler.drafted
    assert min(drafted[drafter, True], drafted[drafter, False]) > 20
    assert service.scheduler.kv.hit_tokens > 100


def test_each_token_is_read_once_and_output_only_where_it_is_of_use() -> None:
    service = Service(config(num_pages=60, max_step_tokens=64), ahead=True)
    request = service.add([0] * 30, 30)
    request_off = service.add([1] * 30, 30, drafters=frozenset())
    read: Counter[int] = Counter()
    while service.scheduler.running or service.scheduler.waiting:
        plan = service.schedule()
        for work in () if plan is None or plan.draft_work is UNSET else plan.draft_work:
            seq = plan.seqs[work.index]
            read[seq.slot] += len(work.lacking) + len([each for each in seq.tokens if each != TO_BE_DRAFTED])
            if seq.init is None and TO_BE_DRAFTED not in seq.tokens:
                begin, end = seq.start - len(work.lacking), seq.start + len(seq.tokens)
                assert end // 4 > begin // 4  # a page has been filled
        answered(service)
    assert request.received == request.tokens[30:60]
    assert request_off.received == request_off.tokens[30:60]
    assert read[0] <= 60 and 56 <= read[1] <= 60


def test_it_rests_while_nothing_is_drafted_but_for_one_pass_in_as_many_steps_as_a_page_has_tokens() -> None:
    service = Service(config(num_pages=400, max_slots=16, max_step_tokens=64, max_logit_rows=64), ahead=True)
    for length in range(3, 19):
        service.add([0] * length, 40, drafters=frozenset())
    steps = passes = 0
    while service.scheduler.running or service.scheduler.waiting:
        plan = service.schedule()
        if plan is not None and all(seq.init is None for seq in plan.seqs):
            steps += 1
            passes += plan.draft_work is not UNSET
        if plan is None or len(service.sent) == 2:
            answered(service)
    assert steps > 30
    assert passes <= steps // 4 + 2


def test_a_layer_that_predicts_reads_what_workers_would_forget() -> None:
    limits = config(worker_drafter="mtp", enable_prefix_cache=False, context_length=400, num_pages=100)
    service = Service(limits, ahead=True)
    service.add([0] * 10, 300, drafters=frozenset())
    lacking = []
    while service.scheduler.running or service.scheduler.waiting:
        plan = service.schedule()
        if plan is not None and plan.draft_work:
            lacking += [len(work.lacking) for work in plan.draft_work if plan.seqs[0].init is None]
        if plan is None or len(service.sent) == 2:
            answered(service)
    assert len(lacking) == 300 // (KEPT_HIDDEN_STATES // 2 + 1)
    assert max(lacking) < KEPT_HIDDEN_STATES - MAX_DRAFTS


def test_nothing_is_read_for_a_cache_that_there_is_not() -> None:
    service = Service(config(enable_prefix_cache=False), ahead=True)
    service.add([0] * 10, 30, drafters=frozenset())
    while service.scheduler.running or service.scheduler.waiting:
        plan = service.schedule()
        assert plan is None or plan.draft_work is UNSET or plan.seqs[0].init is not None
        if plan is None or len(service.sent) == 2:
            answered(service)


def test_the_time_of_a_prompt_is_that_of_both_models() -> None:
    lengths = []
    for draft_costs in (None, Rated()):
        work = (costs := Rated()).begin()
        budget = StepBudget(config(target_itl_s=2.3, max_step_tokens=64), costs, work, draft_costs)
        decode, prompt = (sequence(name, [1] * length, SamplingParams(), 5) for name, length in (("a", 1), ("b", 50)))
        for seq in (decode, prompt):
            seq.position.max_tokens = 60
            chunk = budget.take(seq)
            work.add(0, chunk.length, 1)
        lengths.append(chunk.length)
    assert lengths == [50, 12]
