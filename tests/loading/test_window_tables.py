"""Page tables of windows: programs answer the same with them, from pages that were given back, and refuse the rest."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numaserve.kernels import Team
from numaserve.workers.interface.windows import BLOCK_PAGES, Window
from numaserve.workers.program.native import make_program
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.reference.numbers import DECLARED, Numbers

from tests.loading.driven_programs import AnyProgram, RandomWeights, Told, logprobs, reference, run, start
from tests.support.recorded_programs import SLIDING, VOCAB, Part, sliding

PAGE, CHUNK, SPOILED = 32, 64, 7
WINDOW_PAGES = 16
TOKENS = np.random.default_rng(1).integers(8, VOCAB, 480).tolist()


def native(b: ProgramBuilder, team: Team) -> AnyProgram:
    return make_program(b.setup, b.fused(), team)


def referred(b: ProgramBuilder, team: Team) -> AnyProgram:
    return reference(b, b.fused(), DECLARED)


def exact(b: ProgramBuilder, team: Team) -> AnyProgram:
    return reference(b, b.fused(), Numbers(torch.float64, rounded=False))


Make = Callable[[ProgramBuilder, Team], AnyProgram]


def programs(make: Make, team: Team, window: Window = SLIDING) -> list[AnyProgram]:
    """One with a window table, and one without."""
    part = [Part(weights=RandomWeights(team, spoiled_token=SPOILED)) for _ in range(2)]
    with_table = sliding(part[0], window=window, window_pages=(WINDOW_PAGES,))
    return [make(with_table, team), make(sliding(part[1], window=window), team)]


class Pages:
    """The window pages of a program: those that are given back are given out again, the last ones first."""

    def __init__(self, window: Window) -> None:
        self.window, self.free = window, list(range(WINDOW_PAGES))
        self.held: dict[int, dict[int, int]] = {}  # by slot, and by number in its table

    def reach(self, program: AnyProgram, slot: int, begin: int, end: int) -> None:
        held, first = self.held.setdefault(slot, {}), self.window.first_page(begin)
        self.free += [held.pop(number) for number in sorted(held) if number < first]
        had = max(held, default=first - 1) + 1
        new = {number: self.free.pop() for number in range(had, -(-end // PAGE))}
        held |= new
        program.advance_window(slot, 0, first, list(new.values()))

    def end(self, slot: int) -> None:
        self.free += self.held.pop(slot).values()


def answered(program: AnyProgram, slot: int, tokens: Sequence[int], pages: Pages | None, begin: int = 0) -> list[Told]:
    """The answers to a sequence whose tokens come in chunks, each with a sample at its end."""
    found = []
    for at in range(begin, len(tokens), CHUNK):
        chunk = tokens[at : at + CHUNK]
        if pages is not None:
            pages.reach(program, slot, at, at + len(chunk))
        found += run(program, [(slot, at, chunk, True, ())])
    return found


@pytest.mark.parametrize("make", [native, referred])
@pytest.mark.parametrize("window", [SLIDING, Window(1), Window(100, aligned=True), Window(300)], ids=str)
def test_pages_that_others_have_spoiled_change_no_bit(make: Make, window: Window, team: Team) -> None:
    program, alone = programs(make, team, window)
    start(alone, 0, range(15))
    expected = answered(alone, 0, TOKENS, None)
    pages = Pages(window)
    start(program, 0, range(15))
    answered(program, 0, [SPOILED] * 256, pages)
    start(program, 1, range(15, 30))
    pages.end(0)
    assert answered(program, 1, TOKENS, pages) == expected
    assert any(sampled[1] == sampled[1] for _, sampled, *_ in expected)


def scored(program: AnyProgram, pages: Pages | None) -> list[Told]:
    """Log-probabilities of the first tokens of each chunk and samples at its end, some of them or none."""
    start(program, 0, range(15))
    found, wanted = [], [(3, True), (1, False), (CHUNK, True), (0, False), (7, True), (0, True), (5, True), (1, True)]
    for at, (count, sample) in zip(range(0, len(TOKENS), CHUNK), wanted, strict=True):
        chunk = TOKENS[at : at + CHUNK]
        if pages is not None:
            pages.reach(program, 0, at, at + len(chunk))
        found += run(program, [(0, at, chunk, sample, TOKENS[at + 1 : at + 1 + min(count, CHUNK - 1)])])
    return found


@pytest.mark.parametrize("make", [native, exact])
def test_rows_of_logits_read_borrowed_caches_as_all_rows_do(make: Make, team: Team) -> None:
    found = []
    for narrowed in (False, True):
        for window_pages in ((), (WINDOW_PAGES,)):
            part = Part(weights=RandomWeights(team))
            b = sliding(part, window_pages=window_pages, borrowed=True, narrowed=narrowed)
            found.append(scored(make(b, team), Pages(SLIDING) if window_pages else None))
    if make is native:
        assert all(each == found[0] for each in found)
    for each in found:  # torch adds the elements of products in an order that depends on the number of rows
        assert [row[1] and row[1][0] for row in each] == [row[1] and row[1][0] for row in found[0]]
        np.testing.assert_allclose(logprobs(each), logprobs(found[0]), atol=1e-9)
    assert len({row[2][1] for row in found[0] if row[2] is not None}) > 60


@pytest.mark.parametrize("make", [native, referred])
def test_a_sequence_goes_on_without_the_pages_before_its_window(make: Make, team: Team) -> None:
    program, alone = programs(make, team)
    start(alone, 0, range(15))
    expected = answered(alone, 0, TOKENS, None)
    pages, begin = Pages(SLIDING), 5 * CHUNK
    start(program, 0, range(15))
    answered(program, 0, TOKENS[:begin], pages)
    shared = pages.held[0]
    assert min(shared) == 0
    start(program, 1, range(15))  # the pages of all tokens are those of the prefix
    kept = SLIDING.first_page(begin)
    program.advance_window(1, 0, kept, [shared[number] for number in range(kept, begin // PAGE)])
    pages.held[1] = {number: shared[number] for number in range(kept, begin // PAGE)}
    assert kept == BLOCK_PAGES
    assert answered(program, 1, TOKENS, pages, begin) == expected[begin // CHUNK :]


IMPOSSIBLE: dict[str, tuple[int, int, int, list[int]]] = {
    "a window past the last": (0, 1, 0, [0]),
    "a negative window": (0, -1, 0, [0]),
    "a slot past the last": (9, 0, 0, [0]),
    "a page past the last": (0, 0, 0, [WINDOW_PAGES]),
    "a negative page": (0, 0, 0, [-1]),
    "more pages than a sequence has": (0, 0, 0, [0] * 17),
    "a part of a block": (0, 0, 4, [0]),
    "less than no pages": (0, 0, -8, [0]),
    "more absent pages than a sequence has": (0, 0, 24, []),
}


@pytest.mark.parametrize("make", [native, referred])
@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_a_window_table_out_of_range_is_refused(make: Make, kind: str, team: Team) -> None:
    program, _ = programs(make, team)
    start(program, 0, range(15))
    with pytest.raises(ValueError, match=r"out of range|full|whole blocks"):
        program.advance_window(*IMPOSSIBLE[kind])


@pytest.mark.parametrize("make", [native, referred])
def test_pages_that_are_missing_or_given_back_are_not_read(make: Make, team: Team) -> None:
    program, _ = programs(make, team)
    start(program, 0, range(15))
    with pytest.raises(ValueError, match="too short"):
        run(program, [(0, 0, TOKENS[:CHUNK], True, ())])
    program.revert()
    start(program, 0, range(15))
    program.advance_window(0, 0, 0, list(range(10)))
    for at in range(0, 295, CHUNK):
        run(program, [(0, at, TOKENS[at : min(at + CHUNK, 295)], True, ())])
    for first in (BLOCK_PAGES, 16):  # of the table's 10 pages
        with pytest.raises(ValueError, match=r"given back|ends before"):
            program.advance_window(0, 0, first, [])
            run(program, [(0, 294, [3], True, ())])
        program.revert()
    program.advance_window(0, 0, BLOCK_PAGES, [])
    run(program, [(0, 295, [3], True, ())])
    with pytest.raises(ValueError, match="no fewer than before"):
        program.advance_window(0, 0, 0, [])


def test_a_refused_step_leaves_window_tables_as_they_were(team: Team) -> None:
    program, _ = programs(native, team)
    start(program, 0, range(15))
    program.advance_window(0, 0, 0, [0, 1])
    run(program, [(0, 0, TOKENS[:CHUNK], True, ())])
    program.advance_window(0, 0, 0, [9] * 14)
    program.revert()
    program.advance_window(0, 0, 0, [2] * 14)
    with pytest.raises(ValueError, match="full"):
        program.advance_window(0, 0, 0, [3])
