"""Snapshots of the states of recurrent layers: stored while a sequence passes, and begun with by others."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from driven_programs import RECURRENT, AnyProgram, Told, logprobs, recurrent_program, run, start
from numaserve.kernels import Team
from numaserve.workers.program.reference.numbers import DECLARED

from tests.support.recorded_programs import VOCAB

States = Sequence[tuple[int, int, list[tuple[int, int]]]]
TOKENS: list[int] = np.random.default_rng(0).integers(0, VOCAB, 45).tolist()
OTHERS: list[int] = np.random.default_rng(1).integers(0, VOCAB, 45).tolist()
MARKS = [(1, 2), (8, 0), (32, 1)]


@pytest.fixture(params=["native", "reference"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


def program_of(name: str, backend: str, team: Team) -> AnyProgram:
    return recurrent_program(name, backend, team, DECLARED)


def chunk(
    program: AnyProgram, begin: int, end: int, *, slot: int = 0, tokens: list[int] = TOKENS, states: States = ()
) -> list[Told]:
    """Tokens from `begin` to `end`, with the log-probabilities of those after them."""
    return run(program, [(slot, begin, tokens[begin:end], False, tokens[begin + 1 : end + 1])], states=states)


def whole(program: AnyProgram, states: States = ()) -> list[Told]:
    start(program, 0, range(2))
    return chunk(program, 0, 44, states=states)


@pytest.mark.parametrize("name", RECURRENT)
def test_marks_change_no_result(name: str, backend: str, team: Team) -> None:
    plain, marked = (program_of(name, backend, team) for _ in range(2))
    expected = whole(plain)
    assert whole(marked, [(0, -1, MARKS)]) == expected
    assert whole(marked, [(0, -1, [(7, 1), (44, 2)])]) == expected
    assert whole(marked, [(0, -1, [(position, position % 2) for position in (43, 44)])]) == expected


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("other", [False, True])
def test_another_sequence_goes_on_from_a_snapshot(name: str, other: bool, backend: str, team: Team) -> None:
    program = program_of(name, backend, team)
    expected = whole(program, [(0, -1, MARKS)])
    if other:  # what the slots have held since does not matter
        for slot in (0, 1, 2):
            start(program, slot, range(10, 12))
            chunk(program, 0, 40, slot=slot, tokens=OTHERS)
    for position, snapshot in MARKS:
        start(program, 1, range(2))
        assert chunk(program, position, 44, slot=1, states=[(0, snapshot, [])]) == expected[position:]


@pytest.mark.parametrize("name", RECURRENT)
def test_a_sequence_that_began_with_a_snapshot_goes_on_from_its_slot(name: str, backend: str, team: Team) -> None:
    program = program_of(name, backend, team)
    expected = whole(program, [(0, -1, [(8, 0)])])
    start(program, 1, range(2))
    found = chunk(program, 8, 9, slot=1, states=[(0, 0, [(9, 1)])])
    for begin, end in itertools.pairwise(range(9, 45, 5)):
        found += chunk(program, begin, end, slot=1)
    start(program, 2, range(2))
    again = chunk(program, 9, 44, slot=2, states=[(0, 1, [])])
    if backend == "native":
        assert found == expected[8 : 8 + len(found)]
        assert again == expected[9:]
    np.testing.assert_allclose(logprobs(found), logprobs(expected[8 : 8 + len(found)]), rtol=1e-4)
    np.testing.assert_allclose(logprobs(again), logprobs(expected[9:]), rtol=1e-4)


@pytest.mark.parametrize("name", RECURRENT)
def test_every_cut_with_a_mark_at_it_has_the_same_bits(name: str, team: Team) -> None:
    program = program_of(name, "native", team)
    expected = whole(program)
    for cut in range(1, 44):
        start(program, 0, range(2))
        found = chunk(program, 0, cut, states=[(0, -1, [(cut, 2)])]) + chunk(program, cut, 44)
        assert found == expected
        start(program, 1, range(2))
        assert chunk(program, cut, 44, slot=1, states=[(0, 2, [])]) == expected[cut:]


REFUSED: dict[str, tuple[States, str]] = {
    "a sequence past the last": ([(2, -1, [])], "of a sequence that is not in it"),
    "a negative sequence": ([(-1, -1, [])], "of a sequence that is not in it"),
    "a sequence twice": ([(0, 1, []), (0, 2, [])], "of a sequence twice"),
    "a beginning past the last snapshot": ([(0, 3, [])], "begins with a snapshot that does not exist"),
    "a beginning below none": ([(0, -2, [])], "begins with a snapshot that does not exist"),
    "a beginning at position 0": ([(1, 0, [])], "begins with a snapshot at position 0"),
    "a beginning that is stored": ([(0, 0, [(20, 0)])], "begins with a snapshot that the step stores"),
    "a beginning that another stores": ([(0, 0, []), (1, -1, [(2, 0)])], "begins with a snapshot that the step stores"),
    "a snapshot stored twice": ([(0, -1, [(20, 0)]), (1, -1, [(2, 0)])], "stores a snapshot.* twice"),
    "a mark past the last snapshot": ([(0, -1, [(20, 3)])], "stores a snapshot that does not exist"),
    "a negative mark": ([(0, -1, [(20, -1)])], "stores a snapshot that does not exist"),
    "a mark at the first token": ([(0, -1, [(16, 0)])], "not among its known tokens"),
    "a mark after the last token": ([(0, -1, [(21, 0)])], "not among its known tokens"),
    "a mark at a position of 31 bits": ([(0, -1, [(2**31 - 1, 0)])], "not among its known tokens"),
    "marks that go back": ([(0, -1, [(19, 0), (18, 1)])], "not among its known tokens"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_snapshots_of_no_use_are_refused_and_change_nothing(kind: str, backend: str, team: Team) -> None:
    program = program_of("gated, bf16, 1", backend, team)
    expected = whole(program)
    start(program, 0, range(2))
    chunk(program, 0, 16, states=[(0, -1, [(16, 1)])])
    states, why = REFUSED[kind]
    start(program, 1, range(2, 4))
    with pytest.raises(ValueError, match=why):
        run(program, [(0, 16, TOKENS[16:20], False, ()), (1, 0, OTHERS[:4], False, ())], states=states)
    program.revert()
    assert chunk(program, 16, 44) == expected[16:]
    start(program, 1, range(2))
    assert chunk(program, 16, 44, slot=1, states=[(0, 1, [])]) == expected[16:]
