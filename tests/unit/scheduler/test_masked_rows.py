"""The scheduler tells which rows of a plan wait for masks, and ends the sequences that found none."""

import pytest
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import SequenceState
from numaserve.server.scheduler.step import MaskedRow
from numaserve.workers.interface.protocol import SamplingParams, SeqResult, StepPlan, StepResult

from tests.support.plan_limits import plan_limits
from tests.support.scheduler_integrity import check_integrity
from tests.support.sequences import planned, sequence

MASKED = SamplingParams(masked=True)


def scheduler(**limits: int) -> Scheduler:
    sizes = {"num_pages": 8, "context_length": 64, "max_slots": 3, "max_step_tokens": 16, "page_size": 4}
    return Scheduler(plan_limits(**{**sizes, **limits}))


def answer(scheduler: Scheduler, plan: StepPlan, **fields: bool) -> None:
    results = [SeqResult(token=5 if seq.sample else -1, **fields) for seq in plan.seqs]
    scheduler.apply(StepResult(plan.step_id, 0, results, 0, 0, 0))


def test_only_rows_that_sample_a_masked_sequence_are_named() -> None:
    subject = scheduler(max_step_tokens=6)
    free, masked = sequence("free", [1, 2], SamplingParams(), 4), sequence("masked", range(9), MASKED, 4)
    subject.add(free)
    subject.add(masked)
    first = planned(subject)
    assert subject.masked == []  # a part of the prompt
    second = planned(subject)
    assert [seq.sample for seq in second.seqs] == [True, True]
    assert subject.masked == [MaskedRow(masked, (masked.slot,), 9)]
    assert subject.schedule() is None
    answer(subject, first)
    planned(subject)
    assert subject.masked == [MaskedRow(masked, (masked.slot,), 10)]  # one ahead: its token 9 is not known yet


def test_no_plan_has_no_masked_rows() -> None:
    subject = scheduler()
    subject.add(sequence("masked", [1], MASKED, 1))
    answer(subject, planned(subject))
    assert subject.schedule() is None
    assert subject.masked == []


@pytest.mark.parametrize("ahead", [False, True])
def test_a_dropped_sequence_has_ended_with_nothing_and_its_pages_are_free(ahead: bool) -> None:
    subject = scheduler()
    dropped, other = sequence("dropped", [1, 2, 3], MASKED, 9), sequence("other", [4, 5], MASKED, 9)
    subject.add(dropped)
    subject.add(other)
    first = planned(subject)
    second = planned(subject) if ahead else None
    results = [SeqResult(token=7, dropped=True), SeqResult(token=8)]
    updates = subject.apply(StepResult(first.step_id, 0, results, 0, 0, 0))
    assert [(each.sequence, each.token, each.finished, each.dropped) for each in updates] == [
        (dropped, None, True, True),
        (other, 8, False, False),
    ]
    assert dropped.state is SequenceState.FINISHED
    assert dropped.tokens == [1, 2, 3]
    check_integrity(subject)
    if second is not None:
        assert [seq.slot for seq in second.seqs] == [0, 1]  # the plan behind it still names it
        answer(subject, second)
        assert other.tokens == [4, 5, 8, 5]
    planned(subject)
    assert subject.masked == [MaskedRow(other, (other.slot,), len(other.tokens))]
    check_integrity(subject)
