"""A constrained sequence between its matcher and the rows of the mask board that rank 0 awaits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from numaserve.server.common.patience import PatientTimer
from numaserve.server.scheduler.matcher import MaskState, TokenMatcher
from numaserve.server.scheduler.sequence import Sequence
from numaserve.server.scheduler.step import MaskedRow
from numaserve.server.speculation.reports import DraftForbidden, TokensForced
from numaserve.server.supervisor.memory import MaskBoard

Bits = ctypes.Array[ctypes.c_uint32]
_WORD_BITS = 32
_FEW = 64  # tokens: the prefixes of one text are no more than this


@dataclass(frozen=True, slots=True)
class AwaitedRow:
    """A row of the mask board whose state word rank 0 awaits."""

    board: MaskBoard
    step_id: int
    row: int
    position: int

    def publish(self, state: MaskState, bits: Bits | None = None) -> None:
        """Publish the row to rank 0."""
        self.board.publish(self.step_id, self.row, state, 0 if bits is None else ctypes.addressof(bits))


@dataclass(slots=True)
class AwaitedDrafts:
    """Draft tokens of the next step, and one row of the board for the sample after each.

    Once the step has been answered, another step may reuse these rows, so nothing is published any more. Rank 0 may
    answer without the masks when its patience ends.
    """

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
        """Publish `DROP` to the remaining rows, so that rank 0 stops waiting for them."""
        for row in self.rows[self.published :]:
            row.publish(MaskState.DROP)
        self.rows = ()

    def forget(self) -> None:
        """Forget the rows without publishing them: rank 0 no longer waits."""
        self.rows = ()


@dataclass(slots=True)
class MaskedSequence:
    """A constrained sequence. State that threads and the event loop share is guarded by the lock of `Masks`."""

    sequence: Sequence
    make: Callable[[], TokenMatcher]
    position: int  # number of tokens before the token that `state` is about
    memory: Bits  # a thread writes it without the lock while `state` is None
    state: MaskState | None = None  # None: not known yet
    reports: bool = False  # the scheduler waits for `state`
    patience: PatientTimer | None = None  # used by the event loop: how long the scheduler waits
    tokens: list[int] = field(default_factory=list)  # sampled, not accepted by the matcher yet
    rows: list[AwaitedRow] = field(default_factory=list)  # not published yet
    drafts: AwaitedDrafts | None = None  # of the step that is awaited
    looks: bool = False  # a thread has taken `drafts`
    reports_forced: bool = False  # report the tokens that the constraint forces
    reports_forbidden: bool = True  # report the draft tokens that the constraint forbids
    unchecked: tuple[int, ListOf[int]] = 0, ()  # the last draft tokens, from an index on
    checked: int = -1  # value of `position` at the last check of the draft tokens against the constraint
    at_work: bool = False  # a piece of work runs in a thread or is queued for one
    ended: bool = False
    failure: str | None = None
    matcher: TokenMatcher | None = None  # used by threads only

    @property
    def is_confined(self) -> bool:
        """True if its masks are made in another process."""
        return self.matcher is not None and self.matcher.is_confined

    @property
    def allows_few(self) -> bool:
        """True if few enough tokens are allowed that they may all begin the same text; called in a thread."""
        return self.state is MaskState.MASK and int.from_bytes(self.memory, "little").bit_count() <= _FEW

    @property
    def has_work(self) -> bool:
        """True if there is work for a thread."""
        waits = self.drafts is not None and not self.looks
        return not self.ended and self.failure is None and (self.state is None or waits or self.has_unchecked)

    @property
    def has_unchecked(self) -> bool:
        """True if the sequence has draft tokens after its known tokens that were not checked yet."""
        begin, drafts = self.unchecked
        return self.reports_forbidden and begin == self.position != self.checked and bool(drafts)

    def await_rows(self, board: MaskBoard, step_id: int, planned: MaskedRow) -> None:
        """Note the rows that rank 0 will wait for in a step."""
        first, *after = (
            AwaitedRow(board, step_id, row, position) for position, row in enumerate(planned.rows, planned.position)
        )
        self.rows.append(first)
        if after:
            self.drafts, self.looks = AwaitedDrafts(step_id, planned.drafts, tuple(after)), False

    def take_drafts(self) -> AwaitedDrafts | None:
        """Return the draft tokens if no thread has taken them and the mask before them is known."""
        if self.state is None or self.looks:
            return None
        self.looks = self.drafts is not None
        return self.drafts

    def sampled(self, token: int) -> None:
        """Note the next sampled token, which ends a step that had draft tokens."""
        self.tokens.append(token)
        self.state = None
        self.forget_drafts()

    def wait(self, patience: PatientTimer) -> None:
        """Report `state` once it is known; `patience` ends the wait."""
        self.stop_waiting()
        self.reports, self.patience = True, patience

    def stop_waiting(self) -> None:
        """Stop waiting, and report nothing."""
        self.reports = False
        if self.patience is not None:
            self.patience.stop()
            self.patience = None

    def publish_known(self) -> None:
        """Publish the row that `state` is about, if rank 0 awaits it."""
        if self.state is None:
            return
        for row in [row for row in self.rows if row.position == self.position]:
            row.publish(self.state, self.memory)
            self.rows.remove(row)

    def drop_rows(self) -> None:
        """Publish `DROP` to all awaited rows of this sequence."""
        for row in self.rows:
            row.publish(MaskState.DROP)
        self.rows.clear()
        if self.drafts is not None:
            self.drafts.drop()
            self.forget_drafts()

    def void(self, step_id: int) -> None:
        """Publish `DROP` to the rows of this sequence in one step."""
        for row in [row for row in self.rows if row.step_id == step_id]:
            row.publish(MaskState.DROP)
            self.rows.remove(row)
        if self.drafts is not None and self.drafts.step_id == step_id:
            self.drafts.drop()
            self.forget_drafts()

    def forget_rows(self) -> None:
        """Forget all rows without publishing them: rank 0 no longer waits for this sequence."""
        self.rows.clear()
        self.forget_drafts()

    def forget_drafts(self) -> None:
        """Forget the rows after draft tokens: rank 0 no longer waits for them."""
        if self.drafts is not None:
            self.drafts.forget()
        self.drafts = None

    def forced(self, matcher: TokenMatcher) -> TokensForced:
        """Return the tokens that the constraint forces; called in a thread. Raises `ConstraintFailed`."""
        return TokensForced(self.sequence, self.position, matcher.forced())

    def forbidden(self, matcher: TokenMatcher) -> DraftForbidden | None:
        """Return the draft tokens up to the first forbidden one, if there is one; called in a thread. Raises
        `ConstraintFailed`."""
        self.checked = self.position
        begin, drafts = self.unchecked
        if begin == self.position and (count := matcher.would_accept(drafts)) < len(drafts):
            return DraftForbidden(self.sequence, begin, drafts[: count + 1])
        return None

    def masks_after(self, tokens: tuple[int, ...]) -> Iterator[tuple[MaskState, Bits]]:
        """Yield the mask after each of `tokens`, up to a forbidden one; called in a thread. Raises
        `ConstraintFailed`."""
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
