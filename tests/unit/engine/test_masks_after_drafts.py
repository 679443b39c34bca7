"""Masks of samples after draft tokens: they follow the draft tokens, and never belong to another step."""

import ctypes
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from typing import Any

import pytest
from numaserve.server.engine.masks.masks import Masks
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.matcher import ConstraintFailed, MaskState
from numaserve.server.scheduler.sequence import SequenceUpdate
from numaserve.server.scheduler.step import MaskedRow
from numaserve.server.speculation.reports import TokensForced, Unchecked
from numaserve.workers.interface.protocol import SamplingParams

from tests.support.scripted_matchers import ScriptedMatcher
from tests.support.sequences import sequence

NBYTES = 8
PROMPT = [1, 2, 3]


def after(output: list[int]) -> set[int]:
    """Each token may be followed by the next two."""
    last = output[-1] if output else 10
    return {last + 1, last + 2}


class Board:
    fd, nonce, row_bytes = -1, 0, NBYTES

    def __init__(self) -> None:
        self.said: dict[tuple[int, int], set[int] | MaskState] = {}

    def publish(self, step: int, row: int, state: int, bits: int = 0) -> None:
        assert (step, row) not in self.said
        mask = int.from_bytes(ctypes.string_at(bits, NBYTES), "little") if state == MaskState.MASK else 0
        tokens = {token for token in range(8 * NBYTES) if mask >> token & 1}
        self.said[step, row] = tokens if state == MaskState.MASK else MaskState(state)

    def close(self) -> None: ...


class Later:
    """Does work when it is told to."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], None]) -> None:
        self.work.append(work)

    def submit_slow(self, work: Callable[[], None], client: Client) -> None:
        self.work.append(work)

    def close(self) -> None: ...

    def do(self) -> None:
        while self.work:
            self.work.pop(0)()


class Run:
    def __init__(
        self,
        make: Callable[[], Any] = lambda: ScriptedMatcher(after),
        *,
        drafters: frozenset[str] | None = None,
        **options: Any,
    ) -> None:
        self.board, self.later, self.failures = Board(), Later(), list[str]()
        self.seq = sequence("a", PROMPT, SamplingParams(masked=True), 20, drafters=drafters)
        self.masks = Masks(
            lambda: self.board,
            Metrics("m"),
            lambda _, message: self.failures.append(message),
            lambda _: None,
            patience_s=60.0,
            work=self.later,
            **options,
        )
        self._forced: tuple[int, ListOf[int]] = 0, ()
        self._forbidden: tuple[int, ListOf[int]] = 0, ()
        self.masks.begin()
        self.masks.add(self.seq, make)

    def planned(self, step: int, *drafts: int) -> None:
        rows = tuple(range(0, 4 * len(drafts) + 1, 4))
        self.masks.planned(step, [MaskedRow(self.seq, rows, len(self.seq.tokens), drafts)])

    def drafted(self, begin: int, tokens: list[int]) -> None:
        self.masks.drafted([Unchecked(self.seq, begin, tokens)])

    @property
    def forced(self) -> tuple[int, ListOf[int]]:
        """The last report of forced tokens."""
        self.take()
        return self._forced

    @property
    def forbidden(self) -> tuple[int, ListOf[int]]:
        """The last report of a forbidden draft token."""
        self.take()
        return self._forbidden

    def take(self) -> None:
        for report in self.masks.reports.take():
            assert report.seq is self.seq
            if isinstance(report, TokensForced):
                self._forced = report.begin, list(report.tokens)
            else:
                self._forbidden = report.begin, report.tokens

    def sampled(self, *tokens: int) -> None:
        self.seq.tokens += tokens
        self.masks.advance([SequenceUpdate(self.seq, token, None, [], False) for token in tokens])


@pytest.mark.parametrize("is_known", [False, True])
async def test_each_draft_token_has_the_mask_of_what_comes_behind_it(is_known: bool) -> None:
    run = Run()
    if is_known:
        run.later.do()
    run.planned(1, 11, 13)
    run.later.do()
    assert run.board.said == {(1, 0): {11, 12}, (1, 4): {12, 13}, (1, 8): {14, 15}}


async def test_the_answer_goes_on_where_it_really_is() -> None:
    run = Run()
    run.planned(1, 11, 13)
    run.later.do()
    run.sampled(11, 12)  # the second draft token was wrong
    run.planned(2)
    run.later.do()
    assert run.board.said[2, 0] == {13, 14}
    assert run.failures == []


async def test_many_tokens_at_once_take_one_mask() -> None:
    made = []

    class Counting(ScriptedMatcher):
        def write_mask(self, address: int, nbytes: int) -> MaskState:
            made.append(len(self.output))
            return super().write_mask(address, nbytes)

    run = Run(lambda: Counting(after))
    run.later.do()
    run.sampled(11, 12, 13)
    run.planned(2)
    run.later.do()
    assert made == [0, 3]
    assert run.board.said == {(2, 0): {14, 15}}


async def test_behind_a_draft_token_that_is_not_allowed_nobody_waits() -> None:
    run = Run()
    run.planned(1, 11, 20, 21)
    run.later.do()
    assert run.board.said == {(1, 0): {11, 12}, (1, 4): {12, 13}, (1, 8): MaskState.DROP, (1, 12): MaskState.DROP}


@pytest.mark.parametrize("error", [ConstraintFailed("it fails"), RuntimeError("it breaks")])
async def test_what_fails_behind_a_draft_token_has_not_failed(error: Exception) -> None:
    def fail() -> MaskState:
        raise error

    run = Run(lambda: ScriptedMatcher(after, 2, fail))
    run.planned(1, 11, 12, 13)
    run.later.do()
    assert run.board.said == {(1, 0): {11, 12}, (1, 4): {12, 13}, (1, 8): MaskState.DROP, (1, 12): MaskState.DROP}
    assert run.failures == []
    run.sampled(12)
    run.planned(2)
    run.later.do()
    assert run.board.said[2, 0] == {13, 14}


async def test_a_look_ahead_that_comes_after_the_answer_says_nothing() -> None:
    run = Run()
    run.later.do()
    run.planned(1, 11)
    late = run.later.work.copy()
    run.later.work.clear()
    run.sampled(12)  # rank 0 no longer waits for the row after the draft token
    run.planned(2, 13)
    for work in late:
        work()
    run.later.do()
    assert run.board.said == {(1, 0): {11, 12}, (2, 0): {13, 14}, (2, 4): {14, 15}}


async def test_one_that_is_at_work_as_the_answer_comes_does_not_write_to_the_next_step() -> None:
    class Slow(ScriptedMatcher):
        def fork(self) -> ScriptedMatcher:
            return ScriptedMatcher(after, 1, meanwhile, self.output.copy()) if not self.output else super().fork()

    def meanwhile() -> MaskState:
        run.sampled(12)
        run.planned(2, 13)
        return MaskState.FREE

    run = Run(lambda: Slow(after))
    run.planned(1, 11)
    run.later.do()
    assert run.board.said == {(1, 0): {11, 12}, (2, 0): {13, 14}, (2, 4): {14, 15}}


async def test_nobody_waits_in_a_step_that_is_void() -> None:
    run = Run()
    run.planned(1, 11)
    run.masks.void(1)
    run.later.do()
    assert run.board.said == {(1, 0): MaskState.DROP, (1, 4): MaskState.DROP}


async def test_a_sequence_is_told_what_its_constraint_forces_where_somebody_asks() -> None:
    class Forced(ScriptedMatcher):
        def forced(self) -> list[int]:
            return [self.output[-1] + 1 if self.output else 11]

    run = Run(lambda: Forced(after), looks_ahead=True, drafters=frozenset(("suffix",)))
    run.later.do()
    assert run.forced == (0, ())
    for looks_ahead in (False, True):
        run = Run(lambda: Forced(after), looks_ahead=looks_ahead)
        run.later.do()
        assert run.forced == ((3, [11]) if looks_ahead else (0, ()))
        run.sampled(12)
        run.later.do()
        assert run.forced == ((4, [13]) if looks_ahead else (0, ()))


async def test_a_sequence_is_told_which_of_its_draft_tokens_its_constraint_forbids() -> None:
    run = Run()
    run.drafted(3, [11, 13, 20, 21])
    run.later.do()
    assert run.forbidden == (3, [11, 13, 20])
    run.sampled(12)
    run.drafted(4, [13, 15])
    run.later.do()
    assert run.forbidden == (3, [11, 13, 20])
    run.sampled(13)
    run.drafted(4, [15])  # after tokens that are no longer the last ones
    run.later.do()
    assert run.forbidden == (3, [11, 13, 20])


async def test_draft_tokens_are_looked_at_when_all_masks_that_are_awaited_are_there() -> None:
    seen = []

    class Looking(ScriptedMatcher):
        def would_accept(self, tokens: ListOf[int]) -> int:
            seen.append(set(run.board.said))
            return super().would_accept(tokens)

    run = Run(lambda: Looking(after))
    run.drafted(3, [11, 13, 15, 30])
    run.planned(1, 11, 13)
    run.later.do()
    assert seen == [{(1, 0), (1, 4), (1, 8)}]
    assert run.forbidden == (3, [11, 13, 15, 30])
    run.planned(2, 11)
    run.later.do()
    assert len(seen) == 1


async def test_nothing_is_reported_of_a_sequence_that_has_ended() -> None:
    run = Run()
    run.drafted(3, [20])
    run.later.do()
    run.masks.remove("a")
    assert run.masks.reports.take() == []


@pytest.mark.parametrize("error", [ConstraintFailed("it fails"), RuntimeError("it breaks")])
async def test_draft_tokens_are_not_looked_at_any_more_where_that_has_failed(error: Exception) -> None:
    asked = []

    class Failing(ScriptedMatcher):
        def would_accept(self, tokens: ListOf[int]) -> int:
            asked.append(tokens)
            raise error

    run = Run(lambda: Failing(after))
    for known, token in enumerate((11, 12), 3):
        run.drafted(known, [20])
        run.planned(known, 20)
        run.later.do()
        run.sampled(token)
    assert asked == [[20]]
    assert run.forbidden == (0, ())
    assert run.failures == []
