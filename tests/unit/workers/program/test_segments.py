"""The parts of a step between which states are stored."""

import pytest
from msgspec.structs import replace
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.program.reference.segments import Segment, SequenceStates, check_states, segments

LIMITS = replace(Capacity.of_program(64, 64, max_slots=4, pages_per_slot=16, num_pages=40), num_snapshots=3)
SEQUENCES = [(2, 5, 7), (0, 0, 4)]  # slot, position of the first token, number of tokens


def test_a_sequence_without_snapshots_is_one_segment() -> None:
    assert segments(2, 10, 5, 7, limits=LIMITS, work=None) == [Segment(10, 7, load=2, store=2)]
    assert segments(2, 10, 0, 7, limits=LIMITS, work=None) == [Segment(10, 7, load=None, store=2)]


def test_a_sequence_is_cut_at_its_marks() -> None:
    assert segments(2, 10, 5, 7, limits=LIMITS, work=(0, 1, [(8, 0), (11, 2)])) == [
        Segment(10, 3, load=5, store=4),
        Segment(13, 3, load=4, store=6),
        Segment(16, 1, load=6, store=2),
    ]


def test_a_mark_at_the_end_copies_to_the_slot() -> None:
    assert segments(2, 0, 0, 4, limits=LIMITS, work=(0, -1, [(4, 1)])) == [
        Segment(0, 4, load=None, store=5),
        Segment(4, 0, load=5, store=2),
    ]


@pytest.mark.parametrize(
    ("works", "what"),
    [
        ([(2, -1, [])], "of a sequence that is not in it"),
        ([(-1, -1, [])], "of a sequence that is not in it"),
        ([(0, 1, []), (0, 2, [])], "of a sequence twice"),
        ([(0, 3, [])], "begins with a snapshot that does not exist"),
        ([(0, -2, [])], "begins with a snapshot that does not exist"),
        ([(1, 0, [])], "at position 0"),
        ([(0, 0, [(8, 0)])], "begins with a snapshot that the step stores"),
        ([(0, 0, []), (1, -1, [(2, 0)])], "begins with a snapshot that the step stores"),
        ([(0, -1, [(8, 0)]), (1, -1, [(2, 0)])], "stores a snapshot twice"),
        ([(0, -1, [(8, 3)])], "stores a snapshot that does not exist"),
        ([(0, -1, [(8, -1)])], "stores a snapshot that does not exist"),
        ([(0, -1, [(5, 0)])], "not among its known tokens"),
        ([(0, -1, [(12, 0)])], "not among its known tokens"),  # the last token is a draft token
        ([(0, -1, [(8, 0), (8, 1)])], "not among its known tokens, in order"),
    ],
)
def test_snapshots_of_no_use_are_refused(works: list[SequenceStates], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        check_states(LIMITS, SEQUENCES, [1, 0], works)


def test_snapshots_up_to_the_last_known_token_are_taken() -> None:
    check_states(
        LIMITS,
        SEQUENCES,
        [1, 0],
        [
            (1, -1, [(4, 2)]),
            (0, 1, [(6, 0)]),
        ],
    )
    check_states(LIMITS, SEQUENCES, [0, 0], [(0, -1, [(12, 0)])])
