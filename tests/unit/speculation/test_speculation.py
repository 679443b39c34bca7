"""Draft tokens in plans: which are verified, what becomes of wrong ones, and what does not change without any."""

from collections import Counter
from collections.abc import Callable

import pytest
from msgspec import UNSET
from numaserve.server.costs.cost_model import CostModel
from numaserve.server.costs.cost_table import Terms
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import Sequence
from numaserve.server.scheduler.step import MaskedRow
from numaserve.server.speculation.constraint import KnownConstraint
from numaserve.server.speculation.decode import Decode
from numaserve.server.speculation.drafter import Drafter
from numaserve.server.speculation.reports import Draft, DraftBudget, DraftForbidden, Unchecked, WorkersIdled
from numaserve.server.speculation.speculation import Speculation
from numaserve.workers.interface.protocol import (
    MAX_MASKED_DRAFTS,
    OperationTerms,
    SampledToken,
    SamplingParams,
    SeqResult,
    StepPlan,
    StepResult,
)

from tests.support.drafters import Each, Played
from tests.support.plan_limits import plan_limits
from tests.support.sequences import planned, sequence
from tests.support.speculating import choose, sampled, took, waits

GREEDY = SamplingParams(temperature=0.0)


class Fixed:
    """Drafts the same whatever came before."""

    def __init__(self, *drafts: int) -> None:
        self.drafts = list(drafts)

    def draft(self, tokens: list[int], most: int) -> list[int]:
        return self.drafts[:most]


class Free(CostModel):
    """Whatever is added to a step costs nothing."""

    predicts = True

    def predict(self, terms: Terms) -> float:
        return 1.0


def scheduler(*drafts: int, operations: list[OperationTerms] | None = None, **limits: int) -> Scheduler:
    defaults = {"num_pages": 32, "context_length": 100, "max_slots": 4, "page_size": 4}
    subject = Scheduler(plan_limits(**{**defaults, **limits}), drafters=Each(lambda _salt: Fixed(*drafts)))
    subject.costs.describe([operations or []])
    return subject


def added(subject: Scheduler, name: str = "a", tokens: int = 20, sampling: SamplingParams = GREEDY) -> Sequence:
    seq = sequence(name, [1, 2, 3], sampling, tokens)
    subject.add(seq)
    return seq


def answered(subject: Scheduler, *sampled: list[int], worker_ns: int = 1_000_000) -> None:
    """Answer the oldest plan: what each of its sequences has sampled."""
    seqs = [SeqResult(first, following=[SampledToken(each) for each in rest]) for first, *rest in sampled]
    subject.apply(StepResult(subject.in_flight[0].step_id, 0, seqs, 0, 0, worker_ns))


def begun(subject: Scheduler, *sequences: Sequence) -> None:
    planned(subject)
    answered(subject, *([4] for _ in sequences))


def test_draft_tokens_are_verified_behind_the_last_token_and_right_ones_are_kept() -> None:
    subject = scheduler(7, 8, 9)
    seq = added(subject)
    begun(subject, seq)
    plan = planned(subject)
    assert (plan.seqs[0].start, plan.seqs[0].tokens, plan.drafts) == (3, [4, 7, 8, 9], [3])
    answered(subject, [7, 8, 5])
    assert seq.output == [4, 7, 8, 5]
    assert dict(subject.drafted) == {("played", True): 2, ("played", False): 1}
    assert dict(seq.position.rejected) == {"played": 1}
    following = planned(subject)
    assert (following.seqs[0].start, following.seqs[0].tokens[0]) == (6, 5)


def test_pages_are_given_for_the_longest_outcome_and_go_on_to_be_used() -> None:
    subject = scheduler(7, 8, 9)
    seq = added(subject)
    begun(subject, seq)
    assert planned(subject).seqs[0].pages and len(seq.pages) == 2  # positions 3 to 6
    answered(subject, [5])
    assert planned(subject).seqs[0].pages == []


def test_a_draft_token_takes_no_page_that_a_sequence_needs_to_grow() -> None:
    subject = scheduler(7, 8, 9, num_pages=2)
    seq = added(subject, tokens=5)
    begun(subject, seq)
    assert planned(subject).drafts is UNSET  # the page that is left is for the next token but one
    answered(subject, [5])
    assert planned(subject).drafts == [2]


def test_no_plan_is_made_behind_draft_tokens_until_they_are_answered() -> None:
    subject = scheduler(7)
    seq = added(subject)
    begun(subject, seq)
    planned(subject)
    assert subject.schedule() is None
    answered(subject, [7, 5])
    planned(subject)


def test_draft_tokens_stop_where_the_sequence_does() -> None:
    subject = scheduler(7, 8, 9)
    seq = added(subject, tokens=3)
    begun(subject, seq)
    assert planned(subject).drafts == [1]  # and one token is sampled behind it
    answered(subject, [7, 8])
    assert seq.output == [4, 7, 8]
    assert subject.schedule() is None


def test_every_sequence_keeps_its_token_and_its_row() -> None:
    subject = scheduler(7, 8, 9, max_step_tokens=9, max_logit_rows=4)
    begun(subject, *(added(subject, name) for name in "abc"))
    plan = planned(subject)
    assert len(plan.seqs) == 3
    assert plan.drafts == [1, 0, 0]


def test_what_workers_do_not_know_as_a_token_is_not_drafted() -> None:
    subject = scheduler(7, 99, 8, vocab_size=99)
    seq = added(subject)
    begun(subject, seq)
    assert planned(subject).drafts == [1]


def test_of_several_drafters_that_one_is_heard_whose_draft_tokens_were_right() -> None:
    class Two(Each):
        def make(self, seq: Decode, constraint: KnownConstraint) -> list[Drafter]:
            return [Played(Fixed(*[1] * 17).draft, "bad"), Played(Fixed(*[7] * 17).draft, "good")]

    subject = Scheduler(plan_limits(num_pages=32, context_length=100), drafters=Two(lambda _: Fixed()))
    seq = added(subject, tokens=90)
    begun(subject, seq)
    drafting = subject._speculation
    assert drafting is not None
    heard = []
    for _ in range(10):
        heard += [each.drafter for each in choose(drafting, [seq], 1).values()]
        seq.tokens.append(7)
        sampled(drafting, seq, [7])
    assert heard[0] == "bad"
    assert heard[-1] == "good"


def test_what_is_said_of_named_tokens_comes_with_each_token() -> None:
    subject = scheduler(7)
    begun(subject, added(subject, sampling=SamplingParams(token_ids_logprob=[5])))
    step_id = planned(subject).step_id
    answer = SeqResult(7, token_logprobs=[-1.0], following=[SampledToken(8, token_logprobs=[-2.0])])
    updates = subject.apply(StepResult(step_id, 0, [answer], 0, 0, 1_000_000))
    assert [(each.token, each.token_logprobs) for each in updates] == [(7, [-1.0]), (8, [-2.0])]


def test_a_masked_sequence_has_a_row_of_the_board_for_each_draft_token_and_few_of_them() -> None:
    drafting = settled(READ, [7] * 17, [7] * 20, sampling=SamplingParams(temperature=0.0, masked=True))
    ((seq, draft),) = choose(drafting, list(drafting._drafts), 100).items()
    assert len(draft.tokens) == MAX_MASKED_DRAFTS
    subject = scheduler(7, 8)
    seq = added(subject, sampling=SamplingParams(temperature=0.0, masked=True))
    begun(subject, seq)
    plan = planned(subject)
    assert plan.drafts == [2]
    assert subject.masked == [MaskedRow(seq, (0, 4, 8), 4, (7, 8))]  # there are four slots


MASKED = SamplingParams(temperature=0.0, masked=True)


def test_a_masked_sequence_knows_what_is_drafted_of_it() -> None:
    subject = scheduler(7, 8, 9)
    free, seq = added(subject, "free"), added(subject, sampling=MASKED)
    begun(subject, free, seq)
    planned(subject)
    assert subject.unchecked == [Unchecked(seq, 4, [7, 8, 9])]


def test_draft_tokens_end_before_the_first_that_a_constraint_is_known_to_forbid() -> None:
    subject = scheduler(7, 8, 9)
    seq = added(subject, sampling=MASKED)
    begun(subject, seq)
    subject.constraints_reported([DraftForbidden(seq, 3, [4, 7, 8, 9])])  # reported before the first token came
    assert planned(subject).drafts == [2]
    answered(subject, [7, 8, 9])
    # After another token than the one that is drafted next.
    subject.constraints_reported([DraftForbidden(seq, 6, [9, 8])])
    assert planned(subject).drafts == [3]


@pytest.mark.parametrize("forbidden", [(3, [5, 7]), (4, [8]), (4, [7, 8, 9, 10]), (5, [8]), (2, [3, 4])])
def test_what_is_forbidden_elsewhere_is_verified(forbidden: tuple[int, list[int]]) -> None:
    subject = scheduler(7, 8, 9)
    seq = added(subject, sampling=MASKED)
    begun(subject, seq)
    subject.constraints_reported([DraftForbidden(seq, *forbidden)])
    assert planned(subject).drafts == [3]


def test_nobody_waits_for_draft_tokens_whose_first_is_forbidden() -> None:
    drafting = settled(READ, [7] * 17, [7] * 20, sampling=MASKED)
    (seq,) = drafting._drafts
    seq.position.pending = 1
    assert waits(drafting, [seq], 100)
    drafting.observe(DraftForbidden(seq, len(seq.tokens), [7]))
    assert not waits(drafting, [seq], 100)


def test_without_draft_tokens_plans_are_what_they_are_without_a_drafter() -> None:
    def plans(make: Callable[[], Scheduler]) -> list[StepPlan | None]:
        subject, found = make(), []
        added(subject, tokens=6)
        found.append(subject.schedule())
        for token in range(6):
            found.append(subject.schedule())
            answered(subject, [token])
        return found

    config = plan_limits(num_pages=32, context_length=100)
    assert plans(lambda: Scheduler(config, drafters=Each(lambda _salt: Fixed()))) == plans(lambda: Scheduler(config))


def test_a_newcomer_begins_beside_a_sequence_of_which_everything_is_drafted() -> None:
    subject = scheduler(*range(30, 60), max_step_tokens=16, max_logit_rows=16)
    seq = added(subject, tokens=90)
    begun(subject, seq)
    subject._speculation._prices._costs = Free()  # type: ignore[union-attr, assignment]
    assert len(planned(subject).seqs[0].tokens) == 16
    answered(subject, list(range(30, 46)))
    newcomer = added(subject, "b")
    assert [len(each.tokens) for each in planned(subject).seqs] == [8, 3]
    assert newcomer.slot >= 0


def test_a_sequence_is_not_suspected_for_positions_that_were_drafted() -> None:
    subject = scheduler(7, 8, 9)
    seq = added(subject)
    begun(subject, seq)
    planned(subject)
    assert subject.workers_died().convicted is None
    planned(subject)
    answered(subject, [4])
    planned(subject)
    assert subject.workers_died().convicted is None
    assert seq.output == [4, 4]


def test_nothing_is_drafted_any_more_where_draft_tokens_were_in_flight_as_the_workers_died() -> None:
    subject = scheduler(7, 8, 9)
    begun(subject, added(subject))
    assert planned(subject).drafts == [3]
    subject.workers_died()
    planned(subject)
    answered(subject, [5])
    assert planned(subject).drafts is UNSET


READ = [OperationTerms("linear", weight_bytes=10**9, row_flops=10**6)]  # rows cost next to nothing
COMPUTED = [OperationTerms("linear", weight_bytes=10**3, row_flops=10**9)]  # each row costs as much as the first


def settled(
    operations: list[OperationTerms], drafted: list[int], said: list[int], sampling: SamplingParams = GREEDY
) -> Speculation:
    """The speculation after an answer that took the time of `operations`, and after the tokens `said`."""
    subject = scheduler(*drafted, operations=operations)
    seq = added(subject, tokens=60, sampling=sampling)
    return told(subject, [seq], said)


def told(subject: Scheduler, sequences: list[Sequence], said: list[int]) -> Speculation:
    """The speculation after the first answers and the tokens `said` of each sequence, with one draft token at each."""
    begun(subject, *sequences)
    drafting = subject._speculation
    assert drafting is not None
    for token in said:
        choose(drafting, sequences, 1)
        for seq in sequences:
            seq.tokens.append(token)
            sampled(drafting, seq, [token])
    return drafting


def test_draft_tokens_that_were_right_are_chosen_where_a_row_more_costs_little() -> None:
    drafting = settled(READ, [7] * 17, [7] * 20)
    ((seq, drafts),) = choose(drafting, list(drafting._drafts), 100).items()
    assert len(drafts.tokens) > 5
    assert choose(drafting, [seq], 2) == {seq: Draft([7, 7], "played")}


def counted(drafts: list[int], said: list[int], operations: list[OperationTerms]) -> int:
    """The number of times that draft tokens are asked for while the tokens `said` come."""
    asked = 0

    class Counting(Fixed):
        def draft(self, tokens: list[int], most: int) -> list[int]:
            nonlocal asked
            asked += 1
            return super().draft(tokens, most)

    subject = Scheduler(plan_limits(num_pages=32, context_length=100), drafters=Each(lambda _salt: Counting(*drafts)))
    subject.costs.describe([operations])
    told(subject, [added(subject, tokens=90)], said)
    return asked


def test_draft_tokens_that_are_right_are_not_asked_for_again_until_few_are_left() -> None:
    assert counted([7] * 17, [7] * 60, READ) == 5


def test_where_no_draft_token_would_pay_it_is_seldom_tried() -> None:
    assert counted([7] * 17, [8] * 64, READ) > 48
    assert counted([7] * 17, [8] * 64, COMPUTED) <= 8


def test_draft_tokens_are_left_out_where_each_row_costs_as_much_as_the_first() -> None:
    drafting = settled(COMPUTED, [7] * 17, [7] * 20)
    assert choose(drafting, list(drafting._drafts), 100) == {}


def test_draft_tokens_that_were_wrong_are_not_verified_and_nobody_waits_for_them() -> None:
    drafting = settled(READ, [7] * 17, [8] * 20)
    (seq,) = drafting._drafts
    assert choose(drafting, [seq], 100) == {}
    seq.position.pending = 1
    assert not waits(drafting, [seq], 100)


def test_the_next_plan_waits_for_an_answer_behind_which_much_can_be_drafted() -> None:
    drafting = settled(READ, [7] * 17, [7] * 20)
    (seq,) = drafting._drafts
    assert not waits(drafting, [seq], 100)  # nothing is awaited
    seq.position.pending = 1
    assert waits(drafting, [seq], 100)


def test_draft_tokens_are_given_up_where_steps_with_them_take_longer_than_was_predicted_and_tried_again_later() -> None:
    drafting = settled(READ, [7] * 17, [7] * 20)
    (seq,) = drafting._drafts
    took(drafting, 1.0, 1, None)
    for rows in (2, 3) * 20:
        took(drafting, 4.0, rows, rows - 1)
    assert not choose(drafting, [seq], 2)
    for _ in range(1000):
        took(drafting, 1.0, 1, None)
    assert choose(drafting, [seq], 2)


def test_no_more_is_drafted_than_the_kernels_multiply_at_once() -> None:
    drafting = settled(READ, [7] * 17, [7] * 20)
    (seq,) = drafting._drafts
    for rows in [*range(1, 18)] * 20:
        took(drafting, 1.0 if rows <= 6 else 3.0, rows, rows - 1)
    (draft,) = choose(drafting, [seq], 16).values()
    assert len(draft.tokens) == 5


def test_a_draft_token_that_costs_more_than_it_gives_is_made_where_those_behind_it_cost_nothing() -> None:
    drafting = settled(READ, [7] * 17, [7] * 20)
    (seq,) = drafting._drafts
    for rows in [*range(1, 18)] * 20:
        took(drafting, 1.0 if rows == 1 else 2.1, rows, rows - 1)
    (draft,) = choose(drafting, [seq], 16).values()
    assert len(draft.tokens) > 5


def test_many_sequences_pass_the_step_up_at_which_kernels_begin_another_pass_together() -> None:
    subject = scheduler(*[7] * 17, operations=READ, max_slots=16, num_pages=200)
    seqs = [added(subject, str(index), tokens=60) for index in range(16)]
    drafting = told(subject, seqs, [7] * 20)
    for rows in [*range(16, 33)] * 20:
        drafting.observe(WorkersIdled(0.0, 16))
        took(drafting, 1.0 if rows == 16 else 1.3, rows, None)
    assert sum(len(draft.tokens) for draft in choose(drafting, seqs, 16).values()) == 16


@pytest.mark.parametrize(("sequences", "asked"), [(1, 64), (8, 9)])
def test_of_many_sequences_draft_tokens_are_looked_for_ever_more_seldom_while_there_are_none(
    sequences: int, asked: int
) -> None:
    times = Counter[str]()

    class Nothing(Fixed):
        def draft(self, tokens: list[int], most: int) -> list[int]:
            times[str(tokens[0])] += 1
            return []

    config = plan_limits(num_pages=64, context_length=100, max_slots=8)
    subject = Scheduler(config, drafters=Each(lambda _salt: Nothing()))
    subject.costs.describe([READ])
    told(subject, [added(subject, str(each), tokens=90) for each in range(sequences)], [5] * 64)
    assert times == {"1": sequences * asked}


def test_nobody_looks_whether_to_wait_at_each_step_of_many_sequences_where_it_was_in_vain() -> None:
    subject = scheduler(max_slots=8, operations=READ)
    sequences = [added(subject, str(each)) for each in range(8)]
    begun(subject, *sequences)
    drafting = subject._speculation
    assert drafting is not None
    for seq in sequences:
        seq.position.pending = 1
    looked = []
    for _ in range(9):
        waits(drafting, sequences, 100)
        looked.append(drafting._resting)
    assert looked == [2, 1, 0] * 3


def test_draft_tokens_are_given_up_where_the_workers_rest_for_long_to_get_them() -> None:
    drafting = settled(READ, [7] * 17, [7] * 20)
    (seq,) = drafting._drafts
    for _ in range(40):
        drafting.observe(WorkersIdled(1.0, 1))
    assert not choose(drafting, [seq], 2)
    for _ in range(1000):  # as long as nothing is seen of it
        took(drafting, 1.0, 1, None)
    assert choose(drafting, [seq], 2)


def test_draft_tokens_are_given_up_where_fewer_are_kept_than_their_past_lets_expect() -> None:
    drafting = settled(READ, [7] * 17, [7] * 20)
    (seq,) = drafting._drafts
    for _ in range(60):
        expected = drafting.propose([seq], DraftBudget(2)).expected
        took(drafting, 1.0, 3, 0, expected)
    assert not choose(drafting, [seq], 2)
    for _ in range(300):
        took(drafting, 1.0, 1, None)
    assert choose(drafting, [seq], 2)


def test_no_more_draft_tokens_are_expected_to_be_right_than_are_verified_however_many_were() -> None:
    drafting = settled(COMPUTED, [7] * 17, [7] * 20)
    (seq,) = drafting._drafts
    for _ in range(60):
        drafting.observe(WorkersIdled(0.0, 1))
    for _ in range(5):
        took(drafting, 1.0, 4, 3, 1.0)
    assert not choose(drafting, [seq], 8)


def test_what_was_seen_of_one_sequence_is_supposed_of_the_next() -> None:
    subject = scheduler(*[7] * 17, operations=READ, num_pages=200)
    first = added(subject, "first", tokens=60)
    told(subject, [first], [7] * 20)
    subject.finish("first")
    second = added(subject, "second", tokens=60)
    drafting = told(subject, [second], [])
    assert drafting._drafts_of(second, 0.0).odds[0] > 0.7  # and not half


def test_a_draft_token_behind_the_last_token_of_a_prompt_has_the_price_of_the_whole_step() -> None:
    others, limits = 16, {"max_slots": 20, "max_step_tokens": 64, "num_pages": 200, "context_length": 300}
    subject = Scheduler(
        plan_limits(**limits, page_size=4),
        drafters=Each(lambda scope: Fixed(*[7] * 17) if scope else Fixed()),
    )
    subject.costs.describe([[OperationTerms("linear", weight_bytes=10**7, row_flops=3 * 10**7)]])

    def answer() -> None:
        """In the time that the first draft token of the model of costs says."""
        record = subject.in_flight[0]
        seqs = [SeqResult(5 if entry.sample else -1) for entry in record.entries]
        seconds = 1e-3 + 1e-10 * 1e7 + 1e-11 * 3e7 * record.tokens
        subject.apply(StepResult(record.step_id, 0, seqs, 0, 0, round(seconds * 1e9)))

    for number in range(others):
        subject.add(sequence(str(number), [1, 2, 3], GREEDY, 250))
    for _ in range(30):
        if subject.schedule() is None:
            answer()
    while subject.in_flight:
        answer()
    prompt = sequence("prompt", range(64 - others + 1), GREEDY, 250, cache_salt="drafts")
    subject.add(prompt)
    planned(subject)
    plan = planned(subject)  # ahead of the answer: nobody's next token is known but the prompt's last
    assert len(plan.seqs) == others + 1
    assert subject.in_flight[-1].entries[-1].seq is prompt
    assert not subject.in_flight[-1].drafts
