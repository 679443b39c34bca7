"""The scheduler with a draft model in the workers, which are simulated and check what it reads."""

import random
from collections import Counter

import pytest
from msgspec import UNSET
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.workers.protocol import TO_BE_DRAFTED
from scheduler_simulation import Service

from tests.support.scheduler_integrity import check_integrity


def config(**changes: object) -> SchedulerConfig:
    limits = {
        "num_pages": 40,
        "context_length": 64,
        "max_running_requests": 4,
        "max_step_tokens": 24,
        "max_logit_rows": 24,
        "page_size": 4,
        "draft_model": True,
    }
    return SchedulerConfig(**(limits | changes))  # type: ignore[arg-type]


def answered(service: Service) -> None:
    """The oldest plan is answered by workers that have not waited for it."""
    service.scheduler.paused(0.0)
    service.receive()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("num_pages", [16, 24, 60])
def test_it_reads_all_that_others_may_find_in_the_cache(num_pages: int, ahead: bool) -> None:
    drawn = random.Random(num_pages)
    service = Service(config(num_pages=num_pages), ahead)
    said: list[list[int]] = [[0, 1, 2]]
    for _ in range(300):
        if drawn.random() < 0.15:
            # Conversations that go on: the prompt is what was said before, and a little more.
            prompt = [*drawn.choice(said), drawn.randrange(3)][: drawn.randrange(4, 40)]
            request = service.add(prompt, drawn.randrange(1, 20), penalties=drawn.random() < 0.2)
            said.append(request.truth[:-1])
        if drawn.random() < 0.03:
            service.restart_workers()
        service.schedule()
        if service.sent and (not ahead or len(service.sent) == 2 or drawn.random() < 0.3):
            answered(service)
        check_integrity(service.scheduler)
    service.drain()
    drafted = service.scheduler.drafted
    assert min(drafted["draft_model", True], drafted["draft_model", False]) > 20
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
    assert request.received == request.truth[30:60]
    assert request_off.received == request_off.truth[30:60]
    assert read[0] <= 60 and 56 <= read[1] <= 60
