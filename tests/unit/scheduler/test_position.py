"""The four transitions of a sequence's progress."""

import pytest
from numaserve.server.scheduler.position import Position


def decoding(*generated: int) -> Position:
    """A sequence of three prompt tokens and the generated tokens. All tokens but the last were computed."""
    subject = Position([1, 2, 3], generated)
    subject.max_tokens = 20
    subject.suspended(len(subject.tokens) - 1)
    return subject


def test_a_prompt_is_planned_and_its_sample_answered() -> None:
    subject = Position([1, 2, 3])
    subject.max_tokens = 5
    assert subject.remaining == 3
    subject.planned(3, 0, 3, sample=True)
    assert (subject.next, subject.remaining, subject.unknown, subject.drafter_read) == (3, 1, 1, 3)
    subject.planned(1, 0, 3, sample=True)  # ahead of the answer
    assert (subject.remaining, subject.wants_sample) == (0, False)
    subject.answered([7], sample=True)
    assert (subject.tokens, subject.pending, subject.next) == ([1, 2, 3, 7], 1, 4)


@pytest.mark.parametrize(("tokens", "computed", "rejected"), [([7], 4, 2), ([7, 8], 5, 1), ([7, 8, 9], 6, 0)])
def test_a_sequence_goes_on_before_its_first_rejected_draft_token(
    tokens: list[int], computed: int, rejected: int
) -> None:
    subject = decoding(5)
    subject.planned(1, 2, 4, sample=True)
    assert (subject.next, subject.unknown) == (4, 3)
    subject.answered(tokens, sample=True)
    subject.rewound(2, len(tokens) - 1, len(tokens) - 1, "suffix")
    assert (subject.computed, subject.drafts, subject.pending) == (computed, 0, 0)
    assert subject.tokens == [1, 2, 3, 5, *tokens]
    assert subject.rejected["suffix"] == rejected
    assert subject.drafter_read == 4 + len(tokens) - 1
    assert subject.remaining == 1


def test_no_sample_is_wanted_that_could_lie_past_the_end() -> None:
    subject = decoding(5)
    subject.max_tokens = 7
    subject.planned(1, 2, 0, sample=True)
    assert not subject.wants_sample
    subject.answered([7], sample=True)
    subject.rewound(2, 0, 0, "suffix")
    assert subject.wants_sample


def test_a_suspended_sequence_starts_again_and_still_takes_the_answer_to_its_plan() -> None:
    subject = decoding(5)
    subject.planned(1, 2, 4, sample=True)
    subject.suspended()
    assert (subject.computed, subject.drafts, subject.drafter_read, subject.pending) == (0, 0, 0, 1)
    subject.answered([7, 8], sample=True)
    subject.rewound(2, 1, 1, "suffix")
    assert (subject.tokens, subject.computed, subject.drafter_read) == ([1, 2, 3, 5, 7, 8], 0, 0)
    assert subject.remaining == 6
    subject.suspended(4)  # admitted after a cached prefix
    assert subject.remaining == 2


def test_a_sample_that_does_not_count_leaves_the_tokens_alone() -> None:
    subject = decoding(5)
    subject.planned(1, 0, 0, sample=True)
    subject.answered([], sample=True)
    assert (subject.tokens, subject.pending) == ([1, 2, 3, 5], 0)


@pytest.mark.parametrize("ran", [False, True])
def test_lost_plans_are_planned_again(ran: bool) -> None:
    subject = decoding(5)
    subject.answered([6], sample=False)
    subject.planned(1, 0, 0, sample=True, logprob_rows=2)
    subject.suspended(plans_lost=True, ran=ran)
    assert (subject.pending, subject.logprob_rows_planned, subject.resuming) == (0, 0, ran)


def test_output_of_another_server_is_resumed() -> None:
    assert [decoding(*generated).resuming for generated in ((), (5,))] == [False, True]


def test_keys_are_the_tokens_unless_a_prompt_has_its_own() -> None:
    plain = decoding(7)
    assert plain.keys is plain.tokens
    subject = Position([1, 0, 0], [7])
    subject.set_prompt_keys([1, b"image", b"image"])
    subject.max_tokens = 20
    subject.planned(4, 0, drafter_read=4, sample=True)
    subject.answered([8], 1)
    assert (subject.tokens, subject.keys) == ([1, 0, 0, 7, 8], [1, b"image", b"image", 7, 8])
    with pytest.raises(ValueError, match="a prompt of 2 tokens needs 2 keys"):
        Position([1, 2]).set_prompt_keys([1])
