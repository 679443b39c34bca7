"""Draft tokens of models with recurrent layers: a rejected one leaves nothing in the states of its sequence."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from driven_programs import RECURRENT, AnyProgram, recurrent_program, run, start
from numaserve.kernels import Team
from numaserve.workers.program.reference.numbers import Numbers

from tests.support.recorded_programs import LIMITS, VOCAB

PROMPTS = np.random.default_rng(0).integers(0, VOCAB, (2, 21)).tolist()
NEW = 40


@pytest.fixture(params=["native", "reference"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


def program_of(name: str, backend: str, team: Team) -> AnyProgram:
    return recurrent_program(name, backend, team, Numbers(torch.float64, rounded=False))


def samples(found: Sequence[Any], sequence: int = 0) -> list[Any]:
    """Tokens with their log-probabilities."""
    return [sampled for index, sampled, _, _ in found if index == sequence and sampled is not None]


def assert_same(found: Sequence[Any], expected: Sequence[Any], backend: str) -> None:
    """To the last bit natively; torch rounds otherwise in another batch."""
    assert [each[0] for each in found] == [each[0] for each in expected]
    np.testing.assert_allclose([each[1] for each in found], [each[1] for each in expected], rtol=1e-4)
    assert backend == "reference" or found == expected


def decoded(program: AnyProgram, slot: int, prompt: list[int]) -> list[Any]:
    """Return the samples of a sequence, one token after the other."""
    start(program, slot, range(2 * slot, 2 * slot + 2))
    found = samples(run(program, [(slot, 0, prompt, True, ())]))
    for position in range(len(prompt), len(prompt) + NEW - 1):
        found += samples(run(program, [(slot, position, [found[-1][0]], True, ())]))
    return found


class Drafted:
    """A sequence whose tokens are drafted from what it samples, some of them wrongly."""

    def __init__(self, program: AnyProgram, slot: int, prompt: list[int], expected: list[Any], seed: int) -> None:
        self.slot, self.expected, self._random = slot, expected, np.random.default_rng(seed)
        self.found: list[Any] = []
        self._prompt = prompt
        start(program, slot, range(2 * slot, 2 * slot + 2))

    @property
    def done(self) -> bool:
        return len(self.found) >= NEW

    def part(self) -> tuple[tuple[int, int, list[int], bool, tuple[()]], int]:
        """A row of the plan, and the number of its draft tokens."""
        made = len(self.found)
        known = [self.found[-1][0]] if made else self._prompt
        begin = len(self._prompt) + made - 1 if made else 0
        count = int(self._random.integers(0, min(LIMITS.max_drafts, NEW - made - 1) + 1))
        drafts = [sampled[0] for sampled in self.expected[made : made + count]]
        if drafts and self._random.integers(2):
            wrong = int(self._random.integers(len(drafts)))
            drafts[wrong] = (drafts[wrong] + 1) % VOCAB
        return (self.slot, begin, known + drafts, True, ()), len(drafts)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", RECURRENT)
def test_draft_tokens_change_no_bit(name: str, seed: int, backend: str, team: Team) -> None:
    program = program_of(name, backend, team)
    expected = [decoded(program, slot, prompt) for slot, prompt in enumerate(PROMPTS)]
    sequences = [Drafted(program, 2 + slot, PROMPTS[slot], expected[slot], seed + slot) for slot in (0, 1)]
    while not all(each.done for each in sequences):
        running = [each for each in sequences if not each.done]
        rows, drafts = zip(*(each.part() for each in running), strict=True)
        found = run(program, list(rows), list(drafts))
        for index, each in enumerate(running):
            each.found += samples(found, index)
    for each in sequences:
        assert_same(each.found[:NEW], each.expected, backend)


@pytest.mark.parametrize("name", RECURRENT)
def test_snapshots_hold_what_is_certain(name: str, backend: str, team: Team) -> None:
    program = program_of(name, backend, team)
    (expected, _), prompt = [decoded(program, slot, PROMPTS[slot]) for slot in (0, 1)], PROMPTS[0]
    tokens = [*prompt, *(sampled[0] for sampled in expected)]
    start(program, 2, range(4, 6))
    # Two of three draft tokens are right; the mark of the next step lies among them.
    found = run(program, [(2, 0, [*tokens[:23], (tokens[23] + 1) % VOCAB], True, ())], [3], states=[(0, -1, [(21, 0)])])
    assert_same(samples(found), expected[:3], backend)
    found = run(program, [(2, 23, tokens[23:26], True, ())], [1], states=[(0, -1, [(24, 1), (25, 2)])])
    assert_same(samples(found), expected[4:6], backend)
    for snapshot, position in ((0, 21), (1, 24), (2, 25)):
        start(program, 3, range(2))
        found = run(program, [(3, position, tokens[position:40], True, ())], states=[(0, snapshot, [])])
        assert_same(samples(found), [expected[40 - len(prompt)]], backend)


def test_states_go_on_from_where_they_are(backend: str, team: Team) -> None:
    program = program_of("gated, bf16, 1", backend, team)
    start(program, 0, range(2))
    tokens = PROMPTS[0]
    run(program, [(0, 0, tokens[:10], True, ())], [3])
    for position in (6, 11, 20):
        with pytest.raises(ValueError, match=f"begins at position {position}, but its states are those after 7"):
            run(program, [(0, position, tokens[:4], True, ())])
    run(program, [(0, 9, tokens[9:12], True, ())])
    for position in (9, 13):
        with pytest.raises(ValueError, match=f"begins at position {position}, but its states are those after 12"):
            run(program, [(0, position, tokens[:4], True, ())])


def test_more_draft_tokens_than_states_can_go_back_are_refused(backend: str, team: Team) -> None:
    program = program_of("gated, bf16, 1", backend, team)
    start(program, 0, range(2))
    with pytest.raises(ValueError, match="more draft tokens than"):
        run(program, [(0, 0, PROMPTS[0], True, ())], [LIMITS.max_drafts + 1])
