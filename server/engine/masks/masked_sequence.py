"""A constrained sequence between its matcher and the rows of the board that rank 0 awaits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from numaserve.server.common.patience import PatientTimer
from numaserve.server.engine.masks.matcher import MaskState, TokenMatcher
from numaserve.server.scheduler.sequence import Sequence
from numaserve.server.scheduler.step import MaskedRow
from numaserve.server.supervisor.memory import MaskBoard

Bits = ctypes.Array[ctypes.c_uint32]
_WORD_BITS = 32
_FEW = 64  # tokens: the beginnings of one text are no more


@dataclass(frozen=True, slots=True)
class AwaitedRow:
    """A row of the board whose word rank 0 awaits."""

    board: MaskBoard
    step_id: int
    row: int
    position: int

    def publish(self, state: MaskState, bits: Bits | None = None) -> None:
        """Tell rank 0."""
        self.board.publish(self.step_id, self.row, state, 0 if bits is None else ctypes.addressof(bits))


@dataclass(slots=True)
class Guesses:
    """Guesses of what comes next, and the rows for what is sampled behind each. Once the step has been answered, which
    may be at the end of rank 0's patience, another one may have these rows: nothing is published any more."""

    step_id: int
    tokens: tuple[int, ...]
    rows: tuple[AwaitedRow, ...]
    published: int = 0

    def publish(self, row: AwaitedRow, state: MaskState, bits: Bits) -> None:
        """Publish the next of the rows."""
        if self.rows:
            row.publish(state, bits)
            self.published += 1

    def drop(self) -> None:
        """Let nobody wait for the others."""
        for row in self.rows[self.published :]:
            row.publish(MaskState.DROP)
        self.rows = ()

    def forget(self) -> None:
        """Nobody waits any more."""
        self.rows = ()


@dataclass(slots=True)
class MaskedSequence:
    """A constrained sequence. What threads and the event loop both touch, they touch under the lock of `Masks`."""

    sequence: Sequence
    make: Callable[[], TokenMatcher]
    position: int  # tokens before the one that `state` is about
    memory: Bits  # a thread writes it without the lock while `state` is None
    state: MaskState | None = None  # None: not known yet
    reports: bool = False  # the scheduler waits for `state`
    patience: PatientTimer | None = None  # the event loop's: for how long it waits
    tokens: list[int] = field(default_factory=list)  # sampled, not accepted yet
    rows: list[AwaitedRow] = field(default_factory=list)  # not published yet
    guesses: Guesses | None = None  # of the step that is awaited
    looks: bool = False  # a thread has taken them
    tells_forced: bool = False  # the sequence is to know what its constraint forces
    tells_forbidden: bool = True  # and which of its guesses that forbids
    checked: int = -1  # tokens before the guesses that were held against the constraint last
    at_work: bool = False  # a piece of work is in a thread or on its way there
    ended: bool = False
    failure: str | None = None
    matcher: TokenMatcher | None = None  # the threads' alone

    @property
    def is_confined(self) -> bool:
        """Whether its masks are made in another process."""
        return self.matcher is not None and self.matcher.is_confined

    @property
    def allows_few(self) -> bool:
        """Whether so few tokens are allowed that they may all begin alike; in a thread."""
        return self.state is MaskState.MASK and int.from_bytes(self.memory, "little").bit_count() <= _FEW

    @property
    def has_work(self) -> bool:
        """Whether there is something for a thread to do."""
        waits = self.guesses is not None and not self.looks
        return not self.ended and self.failure is None and (self.state is None or waits or self.has_unchecked)

    @property
    def has_unchecked(self) -> bool:
        """Whether more is guessed of what comes behind the tokens that are known than was looked at."""
        begin, guessed = self.sequence.guessed
        return self.tells_forbidden and begin == self.position != self.checked and bool(guessed)

    def await_rows(self, board: MaskBoard, step_id: int, planned: MaskedRow) -> None:
        """Rank 0 will wait for these."""
        first, *behind = (
            AwaitedRow(board, step_id, row, position) for position, row in enumerate(planned.rows, planned.position)
        )
        self.rows.append(first)
        if behind:
            self.guesses, self.looks = Guesses(step_id, planned.drafts, tuple(behind)), False

    def take_guesses(self) -> Guesses | None:
        """The guesses, if they wait for a thread and the mask before them is there."""
        if self.state is None or self.looks:
            return None
        self.looks = self.guesses is not None
        return self.guesses

    def sampled(self, token: int) -> None:
        """Take in the next token, which ends a step that had guesses."""
        self.tokens.append(token)
        self.state = None
        self.forget_guesses()

    def wait(self, patience: PatientTimer) -> None:
        """Report `state` once it is known; after `patience` it is too late."""
        self.stop_waiting()
        self.reports, self.patience = True, patience

    def stop_waiting(self) -> None:
        """Report nothing."""
        self.reports = False
        if self.patience is not None:
            self.patience.stop()
            self.patience = None

    def publish_known(self) -> None:
        """Publish the row that `state` is about, if it is awaited."""
        if self.state is None:
            return
        for row in [row for row in self.rows if row.position == self.position]:
            row.publish(self.state, self.memory)
            self.rows.remove(row)

    def drop_rows(self) -> None:
        """Let nobody wait for this sequence any more."""
        for row in self.rows:
            row.publish(MaskState.DROP)
        self.rows.clear()
        if self.guesses is not None:
            self.guesses.drop()
            self.forget_guesses()

    def void(self, step_id: int) -> None:
        """Let nobody wait for it in this step."""
        for row in [row for row in self.rows if row.step_id == step_id]:
            row.publish(MaskState.DROP)
            self.rows.remove(row)
        if self.guesses is not None and self.guesses.step_id == step_id:
            self.guesses.drop()
            self.forget_guesses()

    def forget_rows(self) -> None:
        """Nobody waits for it any more."""
        self.rows.clear()
        self.forget_guesses()

    def forget_guesses(self) -> None:
        """Nobody waits for what comes behind them any more."""
        if self.guesses is not None:
            self.guesses.forget()
        self.guesses = None

    def tell_forced(self, matcher: TokenMatcher) -> None:
        """Tell the sequence what its constraint forces; in a thread. Raises `ConstraintFailed`."""
        self.sequence.forced = self.position, matcher.forced()

    def tell_forbidden(self, matcher: TokenMatcher) -> None:
        """Tell the sequence which of its guesses its constraint forbids; in a thread. Raises `ConstraintFailed`."""
        self.checked = self.position
        begin, guessed = self.sequence.guessed
        if begin == self.position and (count := matcher.would_accept(guessed)) < len(guessed):
            self.sequence.forbidden = begin, guessed[: count + 1]

    def masks_behind(self, tokens: tuple[int, ...]) -> Iterator[tuple[MaskState, Bits]]:
        """What may come behind each of these, as far as they are allowed; in a thread. Raises `ConstraintFailed`."""
        if self.matcher is None:
            return
        matcher, state, bits = self.matcher.fork(), self.state, self.memory
        for token in tokens:
            if state is MaskState.MASK and not bits[token // _WORD_BITS] >> token % _WORD_BITS & 1:
                return
            matcher.accept(token)
            bits = type(self.memory)()
            state = MaskState(matcher.write_mask(ctypes.addressof(bits), ctypes.sizeof(bits)))
            if state is MaskState.DROP:
                return
            yield state, bits
