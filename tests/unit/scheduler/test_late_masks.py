"""A sequence whose mask was late takes its sample back, waits aside, and is sampled again in the same place."""

import pytest
from numaserve.server.scheduler.answers import CAREFUL_TOKENS
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import Sequence, SequenceState
from numaserve.workers.interface.protocol import SamplingParams, SeqResult, StepPlan, StepResult, TokenLogprobs

from tests.support.plan_limits import plan_limits
from tests.support.scheduler_integrity import check_integrity
from tests.support.sequences import planned, sequence

MASKED = SamplingParams(masked=True)
STAND_IN = 99


def scheduler(**limits: int | bool) -> Scheduler:
    sizes = {"num_pages": 8, "context_length": 64, "max_slots": 3, "max_step_tokens": 16, "page_size": 4}
    return Scheduler(plan_limits(**{**sizes, **limits}))  # type: ignore[arg-type]


def answer(subject: Scheduler, plan: StepPlan, *results: SeqResult) -> list[tuple[str, int | None, bool]]:
    updates = subject.apply(StepResult(plan.step_id, 0, list(results), 0, 0, 0))
    check_integrity(subject)
    return [(each.sequence.request_id, each.token, each.late) for each in updates]


def late(stand_in: int = STAND_IN) -> SeqResult:
    return SeqResult(stand_in, late=True)


def begun(subject: Scheduler, *prompts: int) -> list[Sequence]:
    sequences = [sequence(f"{index}", range(1, 1 + length), MASKED, 20) for index, length in enumerate(prompts)]
    for seq in sequences:
        subject.add(seq)
    return sequences


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_the_sample_is_taken_back_and_nothing_that_rests_on_it_counts(ahead: bool, prefix_cache: bool) -> None:
    subject = scheduler(enable_prefix_cache=prefix_cache)
    slow, other = begun(subject, 6, 3)
    first = planned(subject)
    second = planned(subject) if ahead else None
    assert answer(subject, first, late(), SeqResult(8)) == [("0", None, True), ("1", 8, False)]
    assert (slow.state, slow.output, slow.slot) == (SequenceState.WAITING, [], -1)
    if second is not None:
        assert answer(subject, second, SeqResult(5), SeqResult(9)) == [("1", 9, False)]
    assert slow.output == []
    assert [seq.slot for seq in planned(subject).seqs] == [other.slot]  # nobody waits for the one that waits
    subject.mask_known(slow)
    again = planned(subject)
    mine = next(seq for seq in again.seqs if seq.init is not None)
    assert (mine.start, mine.tokens) == ((4, [5, 6]) if prefix_cache else (0, [1, 2, 3, 4, 5, 6]))
    check_integrity(subject)


@pytest.mark.parametrize("result", [SeqResult(1, nan=True), SeqResult(1, dropped=True), late(1), SeqResult(1)])
def test_whatever_the_plan_behind_it_answers_is_ignored(result: SeqResult) -> None:
    subject = scheduler()
    (slow,) = begun(subject, 3)
    first, second = planned(subject), planned(subject)
    answer(subject, first, late())
    subject.mask_known(slow)
    assert subject.schedule() is None  # its answer is in flight
    assert answer(subject, second, result) == []
    third = planned(subject)
    assert answer(subject, third, SeqResult(7)) == [("0", 7, False)]
    assert slow.output == [7]


def test_rows_of_prompt_logprobs_that_came_with_it_are_not_lost() -> None:
    subject = scheduler()
    slow = sequence("0", [1, 2, 3], MASKED, 4, prompt_logprobs=True)
    subject.add(slow)
    plan = planned(subject)
    rows = [TokenLogprobs(2, -1.0), TokenLogprobs(3, -2.0)]
    result = SeqResult(STAND_IN, prompt_logprobs=rows, late=True)
    (update,) = subject.apply(StepResult(plan.step_id, 0, [result], 0, 0, 0))
    assert (update.prompt_logprobs, update.token) == (rows, None)
    subject.mask_known(slow)
    (again,) = planned(subject).seqs
    assert again.prompt_logprobs == []


def test_it_is_planned_for_a_while_only_when_its_mask_is_there() -> None:
    subject = scheduler(num_pages=40, context_length=200)
    slow = sequence("0", [1, 2], MASKED, 150)
    subject.add(slow)
    answer(subject, planned(subject), late())
    for token in range(CAREFUL_TOKENS):
        assert subject.schedule() is None
        subject.mask_known(slow)
        plan = planned(subject)
        assert subject.schedule() is None  # none ahead of its token
        answer(subject, plan, SeqResult(token))
        assert slow.state is SequenceState.RUNNING  # it has its place meanwhile
    subject.mask_known(slow)
    planned(subject)
    planned(subject)


def test_one_that_is_retracted_while_it_waits_holds_up_nobody_in_the_queue() -> None:
    subject = scheduler(num_pages=4, max_slots=2)
    first, slow = begun(subject, 7, 3)
    answer(subject, planned(subject), SeqResult(1), late())
    subject.mask_known(slow)
    answer(subject, planned(subject), SeqResult(2), SeqResult(3))
    for token in range(20):
        if slow.state is SequenceState.WAITING:
            break
        answer(subject, planned(subject), SeqResult(token))
    assert slow in subject.waiting.aside
    subject.finish(first.request_id)
    (other,) = begun(subject, 2)
    assert other.state is SequenceState.WAITING
    assert [each.slot for each in planned(subject).seqs] == [other.slot]
    subject.mask_known(slow)
    assert [each.slot for each in planned(subject).seqs] == [other.slot, slow.slot]


@pytest.mark.parametrize("in_flight", [False, True])
def test_it_may_end_while_it_waits(in_flight: bool) -> None:
    subject = scheduler()
    (slow,) = begun(subject, 3)
    first = planned(subject)
    second = planned(subject) if in_flight else None
    answer(subject, first, late())
    assert subject.stats().waiting == 1
    assert subject.finish(slow.request_id)
    if second is not None:
        assert answer(subject, second, SeqResult(5)) == []
    assert (subject.stats().waiting, subject.stats().pages_active) == (0, 0)
    check_integrity(subject)


def test_new_workers_begin_without_what_waits_for_its_mask() -> None:
    subject = scheduler()
    slow, other = begun(subject, 3, 2)
    first = planned(subject)
    planned(subject)
    answer(subject, first, late(), SeqResult(4))
    subject.workers_died()
    check_integrity(subject)
    assert [each.slot for each in planned(subject).seqs] == [other.slot]
    subject.mask_known(slow)
    assert {each.slot for each in planned(subject).seqs} == {other.slot, slow.slot}
