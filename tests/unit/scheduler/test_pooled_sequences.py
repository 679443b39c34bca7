"""Sequences that are pooled end with their prompt, whole or in chunks, from the cache or not."""

import pytest
from numaserve.server.scheduler.errors import ResultMismatch
from numaserve.server.scheduler.request import Pooling
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import Sequence, SequenceUpdate
from numaserve.workers.interface.protocol import SamplingParams, SeqResult, StepPlan, StepResult

from tests.support.plan_limits import plan_limits
from tests.support.scheduler_integrity import check_integrity
from tests.support.sequences import planned, sequence

EMBEDDING = b"\0\0\x80?"


def scheduler(**limits: int) -> Scheduler:
    sizes = {"num_pages": 8, "context_length": 32, "max_slots": 3, "max_step_tokens": 16, "page_size": 4}
    return Scheduler(plan_limits(**{**sizes, **limits}))


def pooled(name: str, tokens: int) -> Sequence:
    return sequence(name, range(tokens), SamplingParams(), 0, pooling=Pooling())


def answer(scheduler: Scheduler, plan: StepPlan, *, nan: bool = False) -> list[SequenceUpdate]:
    results = [SeqResult(embedding=EMBEDDING if seq.pool else b"", nan=nan) for seq in plan.seqs]
    updates = scheduler.apply(StepResult(plan.step_id, 0, results, 0, 0, 0))
    check_integrity(scheduler)
    return updates


def test_the_last_chunk_of_a_prompt_is_pooled_and_ends_the_sequence() -> None:
    subject = scheduler(max_step_tokens=6)
    subject.add(pooled("a", 9))
    first, second = planned(subject), planned(subject)
    assert [(seq.start, len(seq.tokens), seq.sample, seq.pool) for plan in (first, second) for seq in plan.seqs] == [
        (0, 6, False, False),
        (6, 3, False, True),
    ]
    assert subject.schedule() is None
    assert answer(subject, first) == []
    (update,) = answer(subject, second)
    assert (update.token, update.embedding, update.finished) == (None, EMBEDDING, True)
    assert subject.running == []


@pytest.mark.parametrize("tokens", [8, 9])
def test_of_a_prompt_that_is_cached_the_last_token_is_computed_all_the_same(tokens: int) -> None:
    subject = scheduler()
    for name in ("first", "again"):
        subject.add(pooled(name, tokens))
        plan = planned(subject)
        answer(subject, plan)
    (seq,) = plan.seqs
    assert (seq.start, seq.pool) == ((tokens - 1) // 4 * 4, True)
    assert len(seq.tokens) == tokens - seq.start


def test_sequences_that_are_pooled_fill_the_context() -> None:
    subject = scheduler(max_step_tokens=32)
    subject.add(pooled("a", 32))
    (update,) = answer(subject, planned(subject))
    assert update.finished


def test_an_embedding_that_is_not_numbers_leaves_nothing_in_the_cache() -> None:
    subject = scheduler()
    subject.add(pooled("a", 9))
    (update,) = answer(subject, planned(subject), nan=True)
    assert update.nan
    subject.add(pooled("b", 9))
    assert planned(subject).seqs[0].start == 0


@pytest.mark.parametrize("embedding", [b"", EMBEDDING])
def test_an_embedding_that_was_not_asked_for_or_is_missing_is_a_mismatch(embedding: bytes) -> None:
    subject = scheduler(max_step_tokens=16 if embedding == b"" else 6)
    subject.add(pooled("a", 9))
    plan = planned(subject)
    with pytest.raises(ResultMismatch):
        subject.apply(StepResult(plan.step_id, 0, [SeqResult(embedding=embedding)], 0, 0, 0))
