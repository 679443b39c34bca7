"""The registry of live requests: those that have been admitted and have not ended."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial

from msgspec import structs
from numaserve.server.adapters.adapters import Adapters
from numaserve.server.engine.admission.backlog import Backlog
from numaserve.server.engine.clock import Clock
from numaserve.server.engine.masks.masks import Masks, MatcherWork
from numaserve.server.engine.requests.live import LiveRequest
from numaserve.server.engine.requests.stream import Stream
from numaserve.server.engine.requests.timeouts import Timeouts
from numaserve.server.engine.types import (
    EngineError,
    GenerationFailed,
    RequestTimedOut,
    RequestTooLong,
)
from numaserve.server.engine.views.traces import TraceSink
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.errors import SequenceTooLong
from numaserve.server.scheduler.matcher import TokenMatcher
from numaserve.server.scheduler.request import Request
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import Sequence, SequenceUpdate
from numaserve.server.supervisor.memory import MaskBoard
from numaserve.server.tokenizer.types import TokenizerProtocol

logger = logging.getLogger(__name__)


class LiveRequests:
    """Adds requests to the scheduler, hands them the results of steps, and removes them when they have ended for any
    reason. `on_end` is called then: another request can be admitted."""

    def __init__(
        self,
        scheduler: Scheduler,
        tokenizer: TokenizerProtocol,
        metrics: Metrics,
        *,
        board: Callable[[], MaskBoard | None],
        on_end: Callable[[], None],
        on_mask: Callable[[], None],
        mask_patience_s: float,
        clock: Clock = time.monotonic,
        matcher_work: MatcherWork | None = None,
        trace: TraceSink | None = None,
        looks_ahead: bool = False,
        adapters: Adapters | None = None,
    ) -> None:
        """Create an empty registry.

        `board` returns the mask board of the current workers. `on_mask` is called when a sequence can continue whose
        mask was late. `mask_patience_s`, `matcher_work` and `looks_ahead` are as for `Masks`.
        """
        self.masks = Masks(
            board,
            metrics,
            failed=self._on_constraint_failed,
            known=self._on_mask_known,
            patience_s=mask_patience_s,
            clock=clock,
            work=matcher_work,
            looks_ahead=looks_ahead,
        )
        self._clock = clock
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._trace = trace
        self._adapters = adapters or Adapters()
        self._on_end = on_end
        self._on_mask = on_mask
        self._live: dict[str, LiveRequest] = {}
        self._placed: set[str] = set()
        self._ids = itertools.count()
        self.backlog = Backlog(scheduler)
        self.timeouts = Timeouts(clock, self._on_late)
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._live)

    @property
    def without_place(self) -> int:
        """The number of live requests that were admitted to the queue, and not through a place."""
        return len(self._live) - len(self._placed)

    def add(self, requests: Collection[Request], now: float, *, placed: bool = False) -> Stream:
        """Admit all requests, to one stream; `placed` ones have a place. Raises `RequestTooLong`; then none is
        admitted."""
        live: list[LiveRequest] = []
        stream = Stream(len(requests), on_close=lambda: self._abort(live))
        try:
            for index, request in enumerate(requests):
                # One by one: a comprehension would lose those admitted before the one that is refused.
                live.append(self._add(request, stream, index, now, placed=placed))
        except SequenceTooLong as error:
            self._abort(live)
            raise RequestTooLong(str(error)) from error
        return stream

    def _add(self, request: Request, stream: Stream, index: int, now: float, *, placed: bool) -> LiveRequest:
        constrained = request.matcher is not None
        if request.sampling.masked != constrained:  # workers must not wait for masks that no matcher makes
            request = replace(request, sampling=structs.replace(request.sampling, masked=constrained))
        # The client's id is not used as a key: two clients may choose the same one.
        sequence = Sequence(f"{next(self._ids)}", request)
        live = LiveRequest(
            sequence,
            self._tokenizer,
            self._metrics,
            stream,
            index=index,
            now=now,
            on_end=self._remove,
            trace=self._trace,
        )
        self._scheduler.add(sequence)
        if request.adapter is not None:
            self._adapters.enter(request.adapter)
        self.backlog.enter(sequence)
        self._live[sequence.request_id] = live
        if placed:
            self._placed.add(sequence.request_id)
        if request.matcher is not None:
            self.masks.add(sequence, partial(_advanced, request.matcher, request.generated))
        if request.timeout_s is not None:
            self.timeouts.add(sequence.request_id, now + request.timeout_s)
        self._empty.clear()
        live.replay(now)
        return live

    def planning(self, now: float) -> None:
        """Prepare the planning of a step: end late requests, and deliver what matchers have reported."""
        self.timeouts.look(now)
        self._scheduler.constraints_reported(self.masks.reports.take())

    def scheduled(self, sequence: Sequence, now: float) -> None:
        """Note that `sequence` left the queue for the first time."""
        self.backlog.leave(sequence)
        live = self._live.get(sequence.request_id)
        if live is not None:
            live.scheduled(now)

    def advance(self, updates: list[SequenceUpdate], now: float) -> None:
        """Hand each request its update. A request whose output cannot be processed fails alone."""
        for update in updates:
            live = self._live.get(update.sequence.request_id)
            if live is None:
                continue
            if update.dropped:
                live.drop(self.masks.why_dropped(update.sequence.request_id), now)
                continue
            if update.late:
                self.masks.late(update.sequence.request_id)
            try:
                live.advance(update, now)
            except Exception:
                logger.exception("processing the output of a request failed")
                live.fail(
                    GenerationFailed("The server failed to process the output of this request. See the server log."),
                    now,
                )
        if self.masks:
            self.masks.advance(updates)

    def fail(self, sequences: Iterable[Sequence], error: EngineError) -> None:
        """End the requests of these sequences with an error."""
        self._fail((self._live[each.request_id] for each in sequences if each.request_id in self._live), error)

    def fail_with(self, adapter: Adapter, error: EngineError) -> None:
        """End the requests of an adapter with an error."""
        self._fail([each for each in self._live.values() if each.request.adapter is adapter], error)

    def fail_all(self, error: EngineError) -> None:
        """End all requests with an error."""
        self._fail(list(self._live.values()), error)

    @property
    def num_begun(self) -> int:
        """The number of live requests that have ever left the queue."""
        return sum(live.sequence.has_begun for live in self._live.values())

    @property
    def longest_wait_s(self) -> float:
        """The seconds since the oldest request came that waits and has not begun; 0 if none waits."""
        now = self._clock()
        return now - min((live.admitted_at for live in self._live.values() if not live.sequence.has_begun), default=now)

    def id_of(self, sequence: Sequence) -> str:
        """Return the client's request id, as it is in the log."""
        live = self._live.get(sequence.request_id)
        return live.request.request_id if live else ""

    async def wait_until_empty(self) -> None:
        """Return when every request has ended."""
        await self._empty.wait()

    def _on_late(self, request_ids: Iterable[str]) -> None:
        late = [self._live[request_id] for request_id in request_ids if request_id in self._live]
        self._fail(late, RequestTimedOut())

    def _on_constraint_failed(self, request_id: str, message: str) -> None:
        live = self._live.get(request_id)
        if live is not None:
            live.drop(message, self._clock())

    def _on_mask_known(self, sequence: Sequence) -> None:
        self._scheduler.mask_known(sequence)
        self._on_mask()

    def _fail(self, requests: Iterable[LiveRequest], error: EngineError) -> None:
        now = self._clock()
        for live in requests:
            live.fail(error, now)

    def _remove(self, live: LiveRequest) -> None:
        del self._live[live.sequence.request_id]
        self._placed.discard(live.sequence.request_id)
        self._scheduler.finish(live.sequence.request_id)
        self.masks.remove(live.sequence.request_id)
        self.backlog.ended(live.sequence, self._clock())
        if live.request.adapter is not None:
            self._adapters.leave(live.request.adapter)
        if not self._live:
            self._empty.set()
        self._on_end()

    def _abort(self, requests: Iterable[LiveRequest]) -> None:
        now = self._clock()
        for live in requests:
            live.abort(now)


def _advanced(make: Callable[[], TokenMatcher], tokens: Iterable[int]) -> TokenMatcher:
    """Return a matcher that has accepted `tokens`. Raises `ConstraintFailed`."""
    matcher = make()
    for token in tokens:
        matcher.accept(token)
    return matcher
