"""The draft tokens of the workers: how many pay, and when some are tried although none does."""

from itertools import pairwise

import pytest
from numaserve.server.costs.cost_model import CostModel
from numaserve.server.scheduler.sequence import Sequence
from numaserve.server.speculation.gain import UNKNOWN
from numaserve.server.speculation.prices import Prices
from numaserve.server.speculation.reports import Draft, WorkersIdled
from numaserve.server.speculation.speculation import Speculation
from numaserve.server.speculation.worker_drafts import WorkerDrafts
from numaserve.workers.interface.drafters import WORKER_DRAFTERS
from numaserve.workers.interface.protocol import TO_BE_DRAFTED, SamplingParams

from tests.support.drafters import Each, Played
from tests.support.sequences import sequence
from tests.support.speculating import Rated, choose, sampled, took


def placeholders(count: int) -> Draft:
    return Draft((TO_BE_DRAFTED,) * count, "draft_model", by_workers=True, reads=True)


def worker_drafts(costs: CostModel) -> WorkerDrafts:
    return WorkerDrafts(WORKER_DRAFTERS["draft_model"], costs, page_size=4, shares_pages=True)


def drafting(draft_seconds: float, *drafts: int) -> tuple[Speculation, Sequence]:
    drafters = Each(lambda _salt: Played(lambda _tokens, most: list(drafts)[:most]))
    subject = Speculation(drafters, Rated(), worker_drafts(Rated(draft_seconds)), vocab_size=100)
    subject.observe(WorkersIdled(0.0, 1))
    seq = sequence("a", [1, 2, 3], SamplingParams(temperature=0.0), 50)
    seq.position.max_tokens = 53
    seq.position.computed = 2
    return subject, seq


@pytest.mark.parametrize(("seconds", "drafter"), [(0.01, "draft_model"), (0.3, "played"), (1.2, "played")])
def test_draft_tokens_that_are_there_are_taken_where_those_of_the_draft_model_cost_more_than_they_give(
    seconds: float, drafter: str
) -> None:
    subject, seq = drafting(seconds, 5, 6)
    (draft,) = choose(subject, [seq], 20).values()
    assert draft.drafter == drafter


def test_bad_luck_is_forgotten_and_a_new_sequence_is_not_blamed_for_others() -> None:
    drafts = worker_drafts(CostModel())
    unlucky, new = (sequence(name, [1], SamplingParams(), 5) for name in "ab")
    for _ in range(40):
        drafts.answered(unlucky, 0, 1)
        drafts.step_ended()
    assert drafts.rate(unlucky) < 0.1
    assert drafts.rate(new) == UNKNOWN
    for _ in range(300):
        drafts.step_ended()
    assert drafts.rate(unlucky) > 0.45


@pytest.mark.parametrize(("name", "reads"), [("draft_model", True), ("assistant", False)])
def test_an_assistant_reads_nothing_but_where_it_drafts(name: str, reads: bool) -> None:
    drafts = WorkerDrafts(WORKER_DRAFTERS[name], CostModel(), page_size=4, shares_pages=True)
    reading = drafts.reading(4)
    prompt, output = (sequence(each, [1, 2, 3, 4, 5], SamplingParams(), 5) for each in "ab")
    assert reading.add(0, prompt, 5, 0) == 5
    output.position.computed = output.position.drafter_read = 4
    assert reading.add(1, output, 5, 2) == 5
    reading.finish()
    assert [each.index for each in reading.plans] == ([0, 1] if reads else [1])


def when_tried(subject: Speculation, seq: Sequence, steps: int, most: int = 20) -> list[int]:
    """The ones of `steps` steps in which the draft model is to draft."""
    drafts = [choose(subject, [seq], most).get(seq) for _ in range(steps)]
    return [step for step, draft in enumerate(drafts) if draft is not None and draft.drafter == "draft_model"]


def test_draft_tokens_that_seem_not_to_pay_are_tried_ever_more_seldom() -> None:
    subject, seq = drafting(1e3)
    tried = when_tried(subject, seq, 5000)
    waits = [after - before for before, after in pairwise([-1, *tried])]
    assert waits == [32, 64, 128, 256, 512, 1024, 1024, 1024]


def test_what_is_tried_leaves_each_sequence_its_row_and_those_that_are_drafted_behind_theirs() -> None:
    subject, seq = drafting(1e3)
    assert when_tried(subject, seq, 40, most=0) == []
    assert choose(subject, [], 2) == {}
    assert choose(subject, [seq], 2) == {seq: placeholders(2)}
    subject, seq = drafting(1e3, 5, 6)
    assert {choose(subject, [seq], 20)[seq].drafter for _ in range(100)} == {"played"}


def test_those_that_nothing_is_to_be_drafted_behind_use_up_no_trial() -> None:
    subject, seq = drafting(1e3)
    other = sequence("b", [1, 2, 3], SamplingParams(masked=True), 50)
    assert when_tried(subject, other, 2000) == []
    assert when_tried(subject, seq, 100) == [0, 64]


def test_of_many_sequences_those_are_tried_of_which_most_was_read() -> None:
    subject, _ = drafting(1e3)
    seqs = [sequence(str(index), [1] * 20, SamplingParams(), 50) for index in range(8)]
    for seq in seqs:
        seq.position.max_tokens, seq.position.computed, seq.position.drafter_read = 70, 19, int(seq.request_id)
    for _ in range(31):
        assert choose(subject, seqs, 20) == {}
    assert choose(subject, seqs, 2) == dict.fromkeys(seqs[:5:-1], placeholders(1))


def test_draft_tokens_that_are_always_right_are_made_though_the_first_pass_took_a_thousand_times_as_long() -> None:
    subject, seq = drafting(10.0)
    costs = subject._workers._costs  # type: ignore[union-attr]
    assert isinstance(costs, Rated)
    chosen = 0
    for _ in range(200):
        draft = choose(subject, [seq], 20).get(seq)
        drafted = 0 if draft is None else len(draft.tokens)
        took(subject, 1.0, 1 + drafted, drafted or None)
        if drafted:
            costs.seconds = 0.01  # as is observed now
            sampled(subject, seq, [7] * (drafted + 1), by_workers=drafted)
        chosen += drafted > 0
    assert chosen > 60


def test_where_rows_are_few_those_have_them_whose_draft_tokens_are_right_more_often() -> None:
    subject, _ = drafting(0.01)
    seqs = [sequence(str(index), [1, 2, 3], SamplingParams(temperature=0.0), 50) for index in range(4)]
    for seq in seqs:
        seq.position.max_tokens, seq.position.computed = 53, 2
    for seq in seqs[2:]:
        sampled(subject, seq, [1, 2, 3, 4], by_workers=3)
    chosen = choose(subject, seqs, 3)
    assert sum(len(draft.tokens) for draft in chosen.values()) == 3
    assert set(seqs[2:]) <= set(chosen)


@pytest.mark.parametrize(("sequences", "seconds", "waits"), [(1, 0.15, True), (1, 1e-4, False), (4, 0.15, False)])
def test_no_plan_leaves_ahead_that_would_probably_be_run_in_vain(sequences: int, seconds: float, waits: bool) -> None:
    prices = Prices(Rated())
    prices.idled(0.0, 1)
    prices.idled(1e-3, sequences)
    assert prices.may_be_last(sequences, 4.0 * sequences, seconds) == waits
    for _ in range(100 * sequences):
        prices.ended(99_999)  # answers are long here
    assert not prices.may_be_last(sequences, 4.0 * sequences, seconds)
