"""Plans that were made before it was known how many draft tokens of the step before are right."""

import pytest
from msgspec import UNSET
from numaserve.workers.interface.protocol import TO_BE_DRAFTED, DraftWork, SeqPlan, StepPlan
from numaserve.workers.process.continuations import Continuations

SLOT = 3


def behind(said: list[int], drafts: int, *, reads_drafts: bool = True) -> Continuations:
    """The continuations after a step with `drafts` draft tokens that sampled `said` at the positions after 9."""
    subject = Continuations(reads_drafts=reads_drafts)
    tokens = [1, *[TO_BE_DRAFTED] * drafts]
    subject.ran(StepPlan(0, [SeqPlan(SLOT, 9, tokens, sample=True)], drafts=[drafts]), [said])
    return subject


def going_on(drafts: int, *lacking: int) -> StepPlan:
    """A plan after that step, made as if no draft token had been right."""
    seq = SeqPlan(SLOT, 10, [TO_BE_DRAFTED] * drafts, from_previous=True, sample=True)
    if not drafts:
        return StepPlan(1, [seq])
    return StepPlan(1, [seq], drafts=[drafts], draft_work=[DraftWork(0, list(lacking))])


@pytest.mark.parametrize("right", [0, 1, 3])
@pytest.mark.parametrize("drafts", [0, 2])
def test_each_draft_token_that_was_right_moves_a_sequence_on_by_one(right: int, drafts: int) -> None:
    said = [50, 51, 52, 53][: right + 1]
    (seq,) = behind(said, 3).completed(going_on(drafts)).seqs
    assert seq.start == 10 + right
    assert seq.num_tokens == 1 + drafts
    if drafts or right:
        assert not seq.from_previous
        assert seq.tokens == [said[-1], *[TO_BE_DRAFTED] * drafts]


@pytest.mark.parametrize(
    ("right", "drafts", "reads_drafts", "lacking"),
    [
        (0, 3, True, []),
        (2, 3, True, []),
        (3, 3, True, [52]),  # the last draft token leads nowhere, so that it is not read
        (1, 1, True, [50]),
        (2, 3, False, [50, 51]),
        (3, 3, False, [50, 51, 52]),
    ],
)
def test_a_drafter_reads_what_it_has_not_read_as_tokens(
    right: int, drafts: int, reads_drafts: bool, lacking: list[int]
) -> None:
    subject = behind([50, 51, 52, 53][: right + 1], drafts, reads_drafts=reads_drafts)
    assert subject.completed(going_on(2)).draft_work == [DraftWork(0, lacking)]


def test_what_the_front_end_knows_to_be_lacking_comes_first() -> None:
    plan = behind([50], 0).completed(going_on(2, 7, 8))
    assert plan.draft_work == [DraftWork(0, [7, 8])]
    assert plan.seqs[0].tokens == [50, TO_BE_DRAFTED, TO_BE_DRAFTED]


def test_plans_that_know_everything_are_left_as_they_are() -> None:
    subject = behind([50, 51], 1)
    known = StepPlan(1, [SeqPlan(SLOT, 11, [51], sample=True)])
    assert subject.completed(known) == known
    assert known.draft_work is UNSET
    subject.ran(known, [[60]])
    assert subject.completed(going_on(0)) == going_on(0)


def test_nothing_is_made_up_for_a_slot_that_has_sampled_nothing() -> None:
    subject = Continuations(reads_drafts=True)
    assert subject.completed(going_on(2)) == going_on(2)
    subject.ran(StepPlan(0, [SeqPlan(SLOT, 0, [1, 2])]), [[]])
    assert subject.completed(going_on(2)) == going_on(2)
    strange = StepPlan(1, going_on(2).seqs, drafts=[2], draft_work=[DraftWork(7)])
    assert behind([50, 51], 1).completed(strange).draft_work == [DraftWork(7)]
