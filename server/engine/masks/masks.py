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
from numaserve.server.engine.masks.masked_sequence import Guesses, MaskedSequence
from numaserve.server.engine.masks.matcher import ConstraintFailed, MaskState, TokenMatcher
from numaserve.server.engine.masks.matcher_budget import MatcherBudget
from numaserve.server.engine.masks.matcher_threads import MatcherThreads
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.sequence import Sequence, SequenceUpdate
from numaserve.server.scheduler.step import MaskedRow
from numaserve.server.supervisor.memory import MaskBoard

logger = logging.getLogger(__name__)

# For all masks behind the guesses of a sequence: a step shall not wait long for what may not be wanted.
_LOOKING_S = 1e-3
_TELLING_S = 5e-3  # it is made beside everything else, but not without the interpreter's lock
_LATE = (
    "The server could not compute in time which tokens the constraint of this request allows next. Simplify the "
    "constraint, or retry when the server is less busy."
)
_NOTHING = "The constraint of this request allows no next token. Correct the constraint."
_BROKEN = "The server failed to apply the constraint of this request. See the server log."


class MatcherWork(Protocol):
    """Those who do the work of matchers: `MatcherThreads`, or an event loop that is simulated."""

    def submit(self, work: Callable[[], None]) -> None:
        """Have `work` called soon, in the order of the calls. It raises nothing."""

    def submit_slow(self, work: Callable[[], None], client: Client) -> None:
        """Have `work` called that waits for another process, when it is the client's turn; from any thread."""

    def close(self) -> None:
        """Begin nothing more."""


class Masks:
    """Has matchers make the mask of each next token as soon as the token before is known, and hands it to rank 0 when a
    plan wants it, whichever comes last. All methods are called in the event loop.

    Rank 0 does not wait long (see `Masks` in kernels/runtime/program/nodes.h): a mask that comes later costs its own sequence
    alone. The scheduler takes the sample back, and plans the sequence again once `known` was called. A sequence that
    waits for longer than `patience_s` fails.

    A matcher writes to memory of its own, which is copied to the board: one that is late would write over the mask
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
        """`board` gives that of the present group of workers. `work` is for threads of its own unless given. With
        `looks_ahead` sequences are told what their constraints force, for those who guess."""
        self._looks_ahead = looks_ahead
        self._board = board
        self._metrics = metrics
        self._failed = failed
        self._scheduler_knows = known
        self._patience_s = patience_s
        self._row: type[ctypes.Array[ctypes.c_uint32]] = ctypes.c_uint32 * 0
        self._held: dict[str, MaskedSequence] = {}
        self._lock = threading.Lock()
        self._clock = clock
        self._threads: MatcherWork = work or MatcherThreads()
        self._budget = MatcherBudget(clock)

    def __len__(self) -> int:
        return len(self._held)

    def begin(self) -> None:
        """There are workers: the first, or new ones after a `reset`. Their rows are as long as those before."""
        board = self._board()
        # Made once: a type refers to itself, and one for each sequence would be garbage that only a collection finds.
        self._row = ctypes.c_uint32 * (0 if board is None else board.row_bytes // 4)

    def add(self, sequence: Sequence, make: Callable[[], TokenMatcher]) -> None:
        """Constrain a sequence that is new. `make` is called in a thread, now, as is its first mask made. There may be
        no workers, but have been."""
        held = MaskedSequence(sequence, make, len(sequence.tokens), self._row())
        held.tells_forced = self._looks_ahead and (sequence.drafters is None or "grammar" in sequence.drafters)
        self._held[sequence.request_id] = held
        self._set_to_work(held)

    def planned(self, step_id: int, rows: Collection[MaskedRow]) -> None:
        """A plan was made with these rows, for which rank 0 will wait."""
        board = self._board()
        if board is None:
            return  # the workers are gone, and with them whoever waits
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
        """Tokens were sampled. Sequences that have ended by them are not here any more."""
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
        """Rank 0 has not waited for a mask of this sequence, which the scheduler now does."""
        held = self._held.get(request_id)
        if held is None:
            return
        self._metrics.late_mask()
        with self._lock:
            held.drop_rows()  # that of the plan in flight, too
        self._wait(held)
        self._report(request_id)

    def void(self, step_id: int) -> None:
        """Nobody wants the result of this step any more."""
        with self._lock:
            for held in self._held.values():
                held.void(step_id)

    def reset(self) -> None:
        """The workers are gone, and nobody waits for anything. Matchers are where their sequences are, and stay."""
        with self._lock:
            for held in self._held.values():
                held.forget_rows()

    def remove(self, request_id: str) -> None:
        """A sequence has ended; nothing happens to one that is not constrained."""
        held = self._held.pop(request_id, None)
        if held is not None:
            with self._lock:
                held.ended = True
                held.drop_rows()
                held.stop_waiting()

    def why_dropped(self, request_id: str) -> str:
        """For the client: the reason for which rank 0 has dropped a row of the sequence, which was not removed yet."""
        held = self._held.get(request_id)
        if held is None:
            return _BROKEN
        with self._lock:
            known = held.state is MaskState.MASK
            return held.failure or (_NOTHING if known and not any(held.memory) else _BROKEN)

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.close()

    def _wait(self, held: MaskedSequence) -> None:
        request_id = held.sequence.request_id
        timer = PatientTimer(functools.partial(self._failed, request_id, _LATE))
        timer.start(self._patience_s)
        with self._lock:
            held.wait(timer)

    def _report(self, request_id: str) -> None:
        """Let the scheduler know, if it waits, that the mask of the sequence's next token is there."""
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
        self._threads.submit_slow(work, held.sequence.client)

    # --- in a thread --------------------------------------------------------------------------------------------

    def _work(self, held: MaskedSequence, loop: asyncio.AbstractEventLoop, *, may_wait: bool = False) -> None:
        """Make masks until all tokens that are known are behind the last one. One thread at a time has a sequence."""
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
                guesses, is_known = held.take_guesses(), held.state is not None
                tokens, held.tokens = held.tokens, []
            if guesses is not None:
                self._look_ahead(held, guesses)
                continue
            if is_known:
                held.tells_forbidden = self._tell(held, held.tell_forbidden)
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
                if held.tells_forced and held.allows_few:
                    held.tells_forced = self._tell(held, held.tell_forced)

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
        if not self._budget.allows(held.sequence.client.name, time.thread_time() - worked, len(tokens)):
            matcher.confine()
        if state is MaskState.DROP:
            raise ConstraintFailed(_NOTHING)
        self._metrics.mask(self._clock() - begun)
        return state

    def _tell(self, held: MaskedSequence, tell: Callable[[TokenMatcher], None]) -> bool:
        """Have `tell` tell the sequence something. Whether it may again: it has neither failed nor taken long."""
        if held.matcher is None:
            return False
        begun = self._clock()
        try:
            tell(held.matcher)
        except ConstraintFailed:
            return False
        except Exception:
            logger.exception("failed to compute the mask of a constraint")
            return False
        return self._clock() - begun < _TELLING_S

    def _look_ahead(self, held: MaskedSequence, guesses: Guesses) -> None:
        """Publish what may come behind guesses. Behind those that are not allowed nothing is kept: nobody waits."""
        end = self._clock() + _LOOKING_S
        try:
            for row, (state, bits) in zip(guesses.rows, held.masks_behind(guesses.tokens), strict=False):
                with self._lock:
                    guesses.publish(row, state, bits)
                if self._clock() > end or not guesses.rows:
                    break
        except ConstraintFailed:
            pass  # where the answer may never get
        except Exception:
            logger.exception("a constraint failed after a draft token")
        with self._lock:
            guesses.drop()

    def _fail(self, held: MaskedSequence, message: str, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            held.failure = message
            held.drop_rows()
        _call_in(loop, self._failed, held.sequence.request_id, message)


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: str) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended before this thread
        loop.call_soon_threadsafe(function, *arguments)
