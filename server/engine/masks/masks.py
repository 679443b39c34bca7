"""The masks of constrained sequences, on their way from matchers to rank 0."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from numaserve.server.common.patience import PatientTimer
from numaserve.server.engine.clock import Clock
from numaserve.server.engine.masks.constraint_reports import ConstraintReports
from numaserve.server.engine.masks.masked_sequence import AwaitedDrafts, MaskedSequence
from numaserve.server.engine.masks.matcher_budget import MatcherBudget
from numaserve.server.engine.masks.matcher_threads import MatcherThreads
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.matcher import ConstraintFailed, MaskState, TokenMatcher
from numaserve.server.scheduler.sequence import Sequence, SequenceUpdate
from numaserve.server.scheduler.step import MaskedRow
from numaserve.server.speculation.reports import Unchecked
from numaserve.server.supervisor.memory import MaskBoard

logger = logging.getLogger(__name__)

# For all masks after the draft tokens of a sequence: a step must not wait long for masks that may not be needed.
_LOOKING_S = 1e-3
_LATE = (
    "The server could not compute in time which tokens the constraint of this request allows next. Simplify the "
    "constraint, or retry when the server is less busy."
)
_NOTHING = "The constraint of this request allows no next token. Correct the constraint."
_BROKEN = "The server failed to apply the constraint of this request. See the server log."


class MatcherWork(Protocol):
    """Executes the work of matchers: `MatcherThreads`, or a simulated event loop."""

    def submit(self, work: Callable[[], None]) -> None:
        """Schedule `work`, which raises nothing, to be called soon, in the order of the calls."""

    def submit_slow(self, work: Callable[[], None], client: Client) -> None:
        """Schedule `work` that waits for another process, in fair order between clients; callable from any thread."""

    def close(self) -> None:
        """Start no more work."""


class Masks:
    """Makes the mask of each next token as soon as the token before it is known, and hands it to rank 0.

    The mask is handed over when a plan needs it, or when the mask is made, whichever comes last. All methods are called
    in the event loop.

    Rank 0 does not wait long (see `Masks` in kernels/runtime/program/nodes.h): a late mask delays its own sequence
    alone. The scheduler takes the sample back, and plans the sequence again once `known` was called. A sequence that
    waits for longer than `patience_s` fails.

    A matcher writes to its own memory, which is copied to the board. Otherwise a late matcher would overwrite the mask
    that its row has in a later step.

    `failed` is called in the event loop, with the request's id and a message for the client, when a matcher gave up.
    """

    def __init__(
        self,
        board: Callable[[], MaskBoard | None],
        metrics: Metrics,
        failed: Callable[[str, str], None],
        known: Callable[[Sequence], None],
        *,
        patience_s: float,
        clock: Clock = time.monotonic,
        work: MatcherWork | None = None,
        looks_ahead: bool = False,
    ) -> None:
        """Connect the masks to a board, the scheduler and the threads.

        `board` returns the mask board of the current group of workers. `work` executes matchers (default: threads of
        its own). With `looks_ahead`, the tokens that constraints force are reported, for drafters.
        """
        self._looks_ahead = looks_ahead
        self._board = board
        self._metrics = metrics
        self._failed = failed
        self._scheduler_knows = known
        self._patience_s = patience_s
        self._row: type[ctypes.Array[ctypes.c_uint32]] = ctypes.c_uint32 * 0
        self._held: dict[str, MaskedSequence] = {}
        self.reports = ConstraintReports(clock)
        self._lock = threading.Lock()
        self._clock = clock
        self._threads: MatcherWork = work or MatcherThreads()
        self._budget = MatcherBudget(clock)

    def __len__(self) -> int:
        return len(self._held)

    def begin(self) -> None:
        """Note that workers have started: the first ones, or new ones after a `reset`, with rows of the same length."""
        board = self._board()
        # Made once: a type refers to itself, so a type for each sequence would be garbage that only the collector
        # frees.
        self._row = ctypes.c_uint32 * (0 if board is None else board.row_bytes // 4)

    def add(self, sequence: Sequence, make: Callable[[], TokenMatcher]) -> None:
        """Constrain a new sequence. `make` is called in a thread, which then makes the first mask. Workers may be down
        at the moment, but must have been up before."""
        held = MaskedSequence(sequence, make, len(sequence.tokens), self._row())
        drafters = sequence.request.drafters
        held.reports_forced = self._looks_ahead and (drafters is None or "grammar" in drafters)
        self._held[sequence.request_id] = held
        self._set_to_work(held)

    def drafted(self, unchecked: Iterable[Unchecked]) -> None:
        """Note new draft tokens of constrained sequences. They are checked after the next mask, if the sequence is
        where they begin."""
        with self._lock:
            for seq, begin, tokens in unchecked:
                if (held := self._held.get(seq.request_id)) is not None:
                    held.unchecked = begin, tokens

    def planned(self, step_id: int, rows: Collection[MaskedRow]) -> None:
        """Note a plan with `rows`, for which rank 0 will wait."""
        board = self._board()
        if board is None:
            return  # the workers are gone, and no one waits for these rows
        with self._lock:
            for row in rows:
                held = self._held[row.seq.request_id]
                held.await_rows(board, step_id, row)
                if held.failure is None:
                    held.publish_known()
                else:
                    held.drop_rows()
        for row in rows:
            if row.drafts:
                self._set_to_work(self._held[row.seq.request_id])

    def advance(self, updates: Iterable[SequenceUpdate]) -> None:
        """Note sampled tokens. Sequences that ended with these tokens are already removed."""
        for update in updates:
            held = self._held.get(update.sequence.request_id)
            if held is None or update.token is None:
                continue
            with self._lock:
                held.sampled(update.token)
            if held.sequence.awaits_mask:
                self._wait(held)
            self._set_to_work(held)

    def late(self, request_id: str) -> None:
        """Note that rank 0 did not wait for a mask of this sequence; the scheduler now waits for the mask."""
        held = self._held.get(request_id)
        if held is None:
            return
        self._metrics.late_mask()
        with self._lock:
            held.drop_rows()  # also the row of the plan in flight
        self._wait(held)
        self._report(request_id)

    def void(self, step_id: int) -> None:
        """Drop the rows of a step whose result is no longer needed."""
        with self._lock:
            for held in self._held.values():
                held.void(step_id)

    def reset(self) -> None:
        """Forget all awaited rows, because the workers are gone. Matchers keep the state of their sequences."""
        with self._lock:
            for held in self._held.values():
                held.forget_rows()

    def remove(self, request_id: str) -> None:
        """Remove a sequence that has ended; do nothing for one that is not constrained."""
        held = self._held.pop(request_id, None)
        if held is not None:
            with self._lock:
                held.ended = True
                held.drop_rows()
                held.stop_waiting()

    def why_dropped(self, request_id: str) -> str:
        """Return the reason, for the client, why rank 0 dropped a row of a sequence that is not removed yet."""
        held = self._held.get(request_id)
        if held is None:
            return _BROKEN
        with self._lock:
            known = held.state is MaskState.MASK
            return held.failure or (_NOTHING if known and not any(held.memory) else _BROKEN)

    def close(self) -> None:
        """Start no more work."""
        self._threads.close()

    def _wait(self, held: MaskedSequence) -> None:
        request_id = held.sequence.request_id
        timer = PatientTimer(functools.partial(self._failed, request_id, _LATE))
        timer.start(self._patience_s)
        with self._lock:
            held.wait(timer)

    def _report(self, request_id: str) -> None:
        """Report to the scheduler, if it waits, that the mask of the sequence's next token is known."""
        held = self._held.get(request_id)
        if held is None:
            return
        with self._lock:
            if not held.reports or held.state is None:
                return
            held.stop_waiting()
        self._scheduler_knows(held.sequence)

    def _set_to_work(self, held: MaskedSequence) -> None:
        with self._lock:
            if held.at_work or not held.has_work:
                return
            held.at_work = True
        if held.is_confined:
            self._set_to_slow_work(held, asyncio.get_running_loop())
        else:
            self._threads.submit(functools.partial(self._work, held, asyncio.get_running_loop()))

    def _set_to_slow_work(self, held: MaskedSequence, loop: asyncio.AbstractEventLoop) -> None:
        work = functools.partial(self._work, held, loop, may_wait=True)
        self._threads.submit_slow(work, held.sequence.request.client)

    # --- in a thread --------------------------------------------------------------------------------------------

    def _work(self, held: MaskedSequence, loop: asyncio.AbstractEventLoop, *, may_wait: bool = False) -> None:
        """Make masks until the matcher has accepted all known tokens. Only one thread at a time works on a sequence."""
        while True:
            matcher = held.matcher or self._make(held, loop)
            if matcher is None:
                return
            if matcher.is_confined and not may_wait:
                self._set_to_slow_work(held, loop)
                return
            with self._lock:
                held.at_work = held.has_work
                if not held.at_work:
                    return
                drafts, is_known = held.take_drafts(), held.state is not None
                tokens, held.tokens = held.tokens, []
            if drafts is not None:
                self._look_ahead(held, drafts)
                continue
            if is_known:
                held.reports_forbidden = self.reports.look(held, held.forbidden)
                continue
            try:
                state = self._next_mask(matcher, held, tokens)
            except ConstraintFailed as failure:
                self._fail(held, str(failure), loop)
            except Exception:
                logger.exception("a constraint failed")
                self._fail(held, _BROKEN, loop)
            else:
                with self._lock:
                    held.position += len(tokens)
                    if not held.tokens:
                        held.state = state
                        held.publish_known()
                    reports = held.reports
                if reports:
                    _call_in(loop, self._report, held.sequence.request_id)
                if held.reports_forced and held.allows_few:
                    held.reports_forced = self.reports.look(held, held.forced)

    def _make(self, held: MaskedSequence, loop: asyncio.AbstractEventLoop) -> TokenMatcher | None:
        try:
            held.matcher = held.make()
        except ConstraintFailed as failure:
            self._fail(held, str(failure), loop)
        except Exception:
            logger.exception("a constraint failed")
            self._fail(held, _BROKEN, loop)
        return held.matcher

    def _next_mask(self, matcher: TokenMatcher, held: MaskedSequence, tokens: list[int]) -> MaskState:
        begun, worked = self._clock(), time.thread_time()
        for token in tokens:
            matcher.accept(token)
        state = MaskState(matcher.write_mask(ctypes.addressof(held.memory), ctypes.sizeof(held.memory)))
        if not self._budget.allows(held.sequence.request.client.name, time.thread_time() - worked, len(tokens)):
            matcher.confine()
        if state is MaskState.DROP:
            raise ConstraintFailed(_NOTHING)
        self._metrics.mask(self._clock() - begun)
        return state

    def _look_ahead(self, held: MaskedSequence, drafts: AwaitedDrafts) -> None:
        """Publish the masks after draft tokens. Rows after a forbidden draft token are dropped, as they are unused."""
        end = self._clock() + _LOOKING_S
        try:
            for row, (state, bits) in zip(drafts.rows, held.masks_after(drafts.tokens), strict=False):
                with self._lock:
                    drafts.publish(row, state, bits)
                if self._clock() > end or not drafts.rows:
                    break
        except ConstraintFailed:
            pass  # at a place that the answer may never reach
        except Exception:
            logger.exception("a constraint failed after a draft token")
        with self._lock:
            drafts.drop()

    def _fail(self, held: MaskedSequence, message: str, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            held.failure = message
            held.drop_rows()
        _call_in(loop, self._failed, held.sequence.request_id, message)


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: str) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended before this thread
        loop.call_soon_threadsafe(function, *arguments)
