"""The scheduler with a draft model in the workers, which are simulated and check what it reads."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from msgspec import UNSET
from numaserve.server.costs.cost_model import CostModel
from numaserve.server.costs.cost_table import NO_TERMS, Terms
from numaserve.server.scheduler.policy import StepBudget
from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence
from numaserve.server.scheduler.step import InFlight
from numaserve.server.scheduler.step_costs import StepCosts
from numaserve.server.speculation.gain import UNKNOWN
from numaserve.server.speculation.sequence_drafts import DEEPEST
from numaserve.server.speculation.speculation import Draft, Speculation
from numaserve.server.speculation.worker_drafts import WorkerDrafts
from numaserve.workers.interface.protocol import (
    KEPT_HIDDEN_STATES,
    TO_BE_DRAFTED,
    OperationTerms,
    SamplingParams,
    StepResult,
)
from scheduler_simulation import Service

from tests.support.drafters import Each, Played
from tests.support.scheduler_integrity import check_integrity


def config(**changes: object) -> SchedulerConfig:
    limits = {
        "num_pages": 40,
        "context_length": 64,
        "max_running_requests": 4,
        "max_step_tokens": 24,
        "max_logit_rows": 24,
        "page_size": 4,
        "worker_drafter": "draft_model",
    }
    return SchedulerConfig(**(limits | changes))  # type: ignore[arg-type]


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
            said.append(request.truth[:-1])
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
    assert request.received == request.truth[30:60]
    assert request_off.received == request_off.truth[30:60]
    assert read[0] <= 60 and 56 <= read[1] <= 60


def test_it_rests_while_nothing_is_drafted_but_for_one_pass_in_as_many_steps_as_a_page_has_tokens() -> None:
    service = Service(config(num_pages=400, max_running_requests=16, max_step_tokens=64, max_logit_rows=64), ahead=True)
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
    assert max(lacking) < KEPT_HIDDEN_STATES - DEEPEST


def test_nothing_is_read_for_a_cache_that_there_is_not() -> None:
    service = Service(config(enable_prefix_cache=False), ahead=True)
    service.add([0] * 10, 30, drafters=frozenset())
    while service.scheduler.running or service.scheduler.waiting:
        plan = service.schedule()
        assert plan is None or plan.draft_work is UNSET or plan.seqs[0].init is not None
        if plan is None or len(service.sent) == 2:
            answered(service)


class Rated(CostModel):
    """A step takes one second, and a hundredth more for each row; a pass of a draft model `seconds`."""

    predicts = True

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__()
        self.describe([[OperationTerms("linear", row_flops=1.0)]])
        self.seconds = seconds

    def predict(self, terms: Terms) -> float:
        return 1.0 + 0.01 * terms[2] if self.seconds is None else self.seconds


def drafting(draft_seconds: float, *drafts: int) -> tuple[Speculation, Sequence]:
    costs = StepCosts(draft_model=True)
    costs.served, costs.draft_model = Rated(), Rated(draft_seconds)
    drafters = Each(lambda _salt: Played(lambda _tokens, most: list(drafts)[:most]))
    subject = Speculation(drafters, costs.served, costs.draft_model, worker_drafter="draft_model", vocab_size=100)
    subject.paused(0.0, 1)
    seq = Sequence("a", [1, 2, 3], SamplingParams(temperature=0.0), 50)
    seq.position.max_tokens = 53
    seq.position.computed = 2
    return subject, seq


@pytest.mark.parametrize(("seconds", "drafter"), [(0.01, "draft_model"), (0.3, "played"), (1.2, "played")])
def test_draft_tokens_that_are_there_are_taken_where_those_of_the_draft_model_cost_more_than_they_give(
    seconds: float, drafter: str
) -> None:
    subject, seq = drafting(seconds, 5, 6)
    (draft,) = subject.choose([seq], 20).values()
    assert draft.drafter == drafter


def test_nothing_is_learnt_of_drafting_from_a_step_that_has_none() -> None:
    costs, terms = StepCosts(draft_model=True), (1.0,) * len(NO_TERMS)
    costs.describe([[OperationTerms("linear", row_flops=1.0)]], [[OperationTerms("linear", row_flops=1.0)]])
    for step in range(20):
        result = StepResult(step, 0, [], 0, 0, worker_ns=2000, draft_ns=1000)
        costs.observe(InFlight(step, terms=terms), result)
    assert costs.draft_model is not None
    assert costs.served.expected(terms) is not None
    assert costs.draft_model.expected(terms) is None


def test_bad_luck_is_forgotten_and_a_new_sequence_is_not_blamed_for_others() -> None:
    drafts = WorkerDrafts("draft_model", CostModel())
    unlucky, new = (Sequence(name, [1], SamplingParams(), 5) for name in "ab")
    for _ in range(40):
        drafts.answered(unlucky, 0, 1)
        drafts.step_ended()
    assert drafts.rate(unlucky) < 0.1
    assert drafts.rate(new) == UNKNOWN
    for _ in range(300):
        drafts.step_ended()
    assert drafts.rate(unlucky) > 0.45


def when_tried(subject: Speculation, seq: Sequence, steps: int, most: int = 20) -> list[int]:
    """The steps, of so many, in which the draft model is to draft."""
    drafts = [subject.choose([seq], most).get(seq) for _ in range(steps)]
    return [step for step, draft in enumerate(drafts) if draft is not None and draft.drafter == "draft_model"]


def test_draft_tokens_that_seem_not_to_pay_are_tried_ever_more_seldom() -> None:
    subject, seq = drafting(1e3)
    tried = when_tried(subject, seq, 5000)
    waits = [after - before for before, after in pairwise([-1, *tried])]
    assert waits == [32, 64, 128, 256, 512, 1024, 1024, 1024]


def test_what_is_tried_leaves_each_sequence_its_row_and_those_that_are_drafted_behind_theirs() -> None:
    subject, seq = drafting(1e3)
    assert when_tried(subject, seq, 40, most=0) == []
    assert subject.choose([], 2) == {}
    assert subject.choose([seq], 2) == {seq: Draft([TO_BE_DRAFTED] * 2, "draft_model")}
    subject, seq = drafting(1e3, 5, 6)
    assert {subject.choose([seq], 20)[seq].drafter for _ in range(100)} == {"played"}


def test_those_that_nothing_is_to_be_drafted_behind_use_up_no_trial() -> None:
    subject, seq = drafting(1e3)
    other = Sequence("b", [1, 2, 3], SamplingParams(masked=True), 50)
    assert when_tried(subject, other, 2000) == []
    assert when_tried(subject, seq, 100) == [0, 64]


def test_of_many_sequences_those_are_tried_of_which_most_was_read() -> None:
    subject, _ = drafting(1e3)
    seqs = [Sequence(str(index), [1] * 20, SamplingParams(), 50) for index in range(8)]
    for seq in seqs:
        seq.position.max_tokens, seq.position.computed, seq.position.drafter_read = 70, 19, int(seq.request_id)
    for _ in range(31):
        assert subject.choose(seqs, 20) == {}
    assert subject.choose(seqs, 2) == dict.fromkeys(seqs[:5:-1], Draft([TO_BE_DRAFTED], "draft_model"))


def test_draft_tokens_that_are_always_right_are_made_though_the_first_pass_took_a_thousand_times_as_long() -> None:
    subject, seq = drafting(10.0)
    costs = subject._workers._costs  # type: ignore[union-attr]
    assert isinstance(costs, Rated)
    chosen = 0
    for _ in range(200):
        draft = subject.choose([seq], 20).get(seq)
        drafted = 0 if draft is None else len(draft.tokens)
        subject.took(1.0, 1 + drafted, drafted or None)
        if drafted:
            costs.seconds = 0.01  # as is observed now
            subject.answered(seq, [7] * (drafted + 1), by_workers=drafted)
        chosen += drafted > 0
    assert chosen > 60


def test_where_rows_are_few_those_have_them_whose_draft_tokens_are_right_more_often() -> None:
    subject, _ = drafting(0.01)
    seqs = [Sequence(str(index), [1, 2, 3], SamplingParams(temperature=0.0), 50) for index in range(4)]
    for seq in seqs:
        seq.position.max_tokens, seq.position.computed = 53, 2
    for seq in seqs[2:]:
        subject.answered(seq, [1, 2, 3, 4], by_workers=3)
    chosen = subject.choose(seqs, 3)
    assert sum(len(draft.tokens) for draft in chosen.values()) == 3
    assert set(seqs[2:]) <= set(chosen)


def test_the_time_of_a_prompt_is_that_of_both_models() -> None:
    lengths = []
    for draft_costs in (None, Rated()):
        work = (costs := Rated()).begin()
        budget = StepBudget(config(target_itl_s=2.3, max_step_tokens=64), costs, work, draft_costs)
        decode, prompt = (Sequence(name, [1] * length, SamplingParams(), 5) for name, length in (("a", 1), ("b", 50)))
        for seq in (decode, prompt):
            seq.position.max_tokens = 60
            chunk = budget.take(seq)
            work.add(0, chunk.length, 1)
        lengths.append(chunk.length)
    assert lengths == [50, 12]


@pytest.mark.parametrize(("sequences", "seconds", "waits"), [(1, 0.15, True), (1, 1e-4, False), (4, 0.15, False)])
def test_no_plan_leaves_ahead_that_would_probably_be_run_in_vain(sequences: int, seconds: float, waits: bool) -> None:
    subject, _ = drafting(0.01)
    subject.paused(1e-3, sequences)
    assert subject.may_be_last(sequences, 4.0 * sequences, seconds) == waits
    for _ in range(100 * sequences):
        seq = Sequence("long", [1], SamplingParams(), 100_000)
        seq.tokens += [1] * 99_999  # answers are long here
        subject.forget(seq)
    assert not subject.may_be_last(sequences, 4.0 * sequences, seconds)
