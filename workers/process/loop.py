"""The worker's loop: receive a message, run a native step, send a message.

This process does little else, and only while there is no message and briefly after each step. It first touches the KV
cache's memory and measures requested ceilings. After a first start, a background writer also saves the packed weights
to the cache.
"""

import logging
import os
import time
from collections.abc import Callable, Generator

import psutil
import zmq
from numaserve.shm_comm import RingError
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import (
    Ceilings,
    Failure,
    FromWorker,
    Launch,
    LoadAdapter,
    LoadProgress,
    ProfileRequest,
    ProtocolError,
    Ready,
    Shutdown,
    StepPlan,
    StepResult,
    ToDisk,
    ToWorker,
    WorkerStats,
    decode_to_worker,
    encode,
)
from numaserve.workers.process.adapters import AdapterMissingError
from numaserve.workers.process.links import RowsLost, StageLinks
from numaserve.workers.process.model import RankModel
from numaserve.workers.process.node import NodeContext

logger = logging.getLogger(__name__)

_STATS_INTERVAL_S = 5.0
_PROGRESS_STEPS = 50  # most progress messages of a load
_LINGER_MS = 1000  # for the front end to receive the last messages
_PAUSE_MS = 20  # time without a plan after which background work starts: shorter pauses occur between two steps


class Orphaned(Exception):
    """Raised when the front end is gone."""


class Mailbox:
    """The worker's socket. `lifeline_fd` reports end of file when the front end ends, even by SIGKILL."""

    def __init__(self, endpoint: str, lifeline_fd: int) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self._socket.connect(endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._wake_fd, zmq.POLLIN)
        self.lifeline_fd = lifeline_fd
        self._lifeline = zmq.Poller()
        if lifeline_fd >= 0:
            for poller in (self._poller, self._lifeline):
                poller.register(lifeline_fd, zmq.POLLIN)

    def wake(self) -> None:
        """End a wait for a message, the current one or the next. Any thread may call this."""
        os.eventfd_write(self._wake_fd, 1)

    def receive(self, meanwhile: Callable[[], bool] = lambda: False, *, pause_ms: int = 0) -> ToWorker | None:
        """Wait for the next message, or for `wake`, and then return None. Frames that are not messages are dropped.
        Raises `Orphaned`.

        After `pause_ms` without a message, `meanwhile` is called until a message comes or `meanwhile` returns False.
        """
        while True:
            # A waiting plan is received without a poll: the usual case when the front end plans ahead.
            try:
                return decode_to_worker(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                pass
            except ProtocolError as error:
                logger.warning("dropped a frame: %s", error)
                continue
            ready = self._poller.poll(pause_ms)
            while not ready:
                ready = self._poller.poll(0 if meanwhile() else None)
            sources = {each for each, _ in ready}
            if not sources <= {self._socket, self._wake_fd}:
                raise Orphaned
            if self._wake_fd in sources:
                os.eventfd_read(self._wake_fd)
                return None

    @property
    def is_orphaned(self) -> bool:
        """True if the front end is gone."""
        return bool(self._lifeline.poll(0))

    def check(self) -> None:
        """Raise `Orphaned` if the front end is gone."""
        if self.is_orphaned:
            raise Orphaned

    def send(self, message: FromWorker) -> None:
        """Send a message."""
        self._socket.send(encode(message))

    def close(self) -> None:
        """Close the socket once sent messages have left, at most a second later, and at once if the front end is gone:
        the next one waits for the memory of this process."""
        self._context.destroy(linger=0 if self.is_orphaned else _LINGER_MS)
        os.close(self._wake_fd)


def serve(mailbox: Mailbox, rank: int) -> int:
    """Run a worker from its launch to its end, and return its exit status. Raises `Orphaned`."""
    launch = mailbox.receive()
    if not isinstance(launch, Launch) or launch.rank != rank:
        mailbox.send(Failure(rank, -1, "the first message to a worker must be the launch of its rank"))
        return 1
    try:
        model = _load(mailbox, launch)
    except (OperatorError, OSError, RingError, MemoryError) as error:
        mailbox.send(Failure(rank, -1, str(error) or type(error).__name__))
        return 2 if isinstance(error, OperatorError) else 1
    model.cache_weights()
    try:
        return _Loop(mailbox, model, rank).run()
    finally:
        model.close()


def _load(mailbox: Mailbox, launch: Launch) -> RankModel:
    node = NodeContext.enter(launch, mailbox.lifeline_fd)
    sent = -1

    def report(done: int, total: int) -> None:
        nonlocal sent
        step = done * _PROGRESS_STEPS // max(total, 1)
        if step != sent:
            sent = step
            mailbox.send(LoadProgress(launch.rank, done, total))

    links = StageLinks(launch, mailbox.check) if launch.settings.stages > 1 else None
    model = RankModel(launch, node, report, mailbox.wake, links)
    if links is not None:
        loaded = LoadProgress(launch.rank, model.weight_bytes, model.weight_bytes)
        links.open(lambda: mailbox.send(loaded))  # the deadline of loading begins again
    mailbox.send(
        Ready(
            rank=launch.rank,
            isa=model.isa,
            rss_bytes=_rss_bytes(),
            weight_bytes=model.weight_bytes,
            kv_bytes=model.kv_bytes,
            misplaced_pages=model.misplaced_pages(),
            state_bytes=model.state_bytes,
            memory_bound=node.memory_bound,
            weights_from=model.origin,
            weights_ns=round(model.load_seconds * 1e9),
            terms=model.terms,
            draft_terms=model.draft_terms,
            tower_terms=model.tower_terms,
            tower_parts=model.tower_parts,
            adapters=model.adapters.load(launch.adapters),
        )
    )
    return model


class _Loop:
    def __init__(self, mailbox: Mailbox, model: RankModel, rank: int) -> None:
        self._mailbox = mailbox
        self._model = model
        self._rank = rank
        self._kv_populations = model.kv_populations()
        self._next_stats = time.monotonic() + _STATS_INTERVAL_S
        self._measuring: tuple[ProfileRequest, Generator[None, None, Ceilings | None]] | None = None

    def run(self) -> int:
        while True:
            try:
                hurries = self._measuring is not None or any(each.is_behind for each in self._kv_populations)
                message = self._mailbox.receive(self._use_pause, pause_ms=0 if hurries else _PAUSE_MS)
            except Orphaned:
                # The last plan may have reached only some ranks, which then wait for this one.
                self._model.abandon("the front end has exited")
                raise
            if isinstance(message, Shutdown):
                return 0
            if isinstance(message, ProfileRequest):
                self._profile(message)
                continue
            if isinstance(message, LoadAdapter):
                self._model.adapters.begin(message)
            elif isinstance(message, ToDisk) and self._model.disk is not None:
                self._model.disk.begin(message)
            for answer in self._model.answers():
                self._mailbox.send(answer)
            if not isinstance(message, StepPlan):
                continue
            try:
                self._step(message)
            except (RingError, RowsLost) as error:
                self._mailbox.send(Failure(self._rank, -1, str(error)))
                return 1
            except AdapterMissingError as error:
                self._model.abandon(str(error))
                self._mailbox.send(Failure(self._rank, -1, str(error)))
                return 1
            self._send_stats()
            for each in self._kv_populations:
                each.keep_up()
            self._measure()  # traffic without a pause delays the measurement, but cannot prevent it

    def _step(self, plan: StepPlan) -> None:
        for each in self._kv_populations:
            each.follow(plan)
        begin = time.monotonic_ns()
        try:
            answer = self._model.run(plan)
        except (ValueError, TypeError, OverflowError) as error:
            # Every rank refuses the same plan for the same reason, before any collective: the ranks stay in step.
            # TypeError and OverflowError come from numbers that fit no native integer.
            self._mailbox.send(Failure(self._rank, plan.step_id, str(error)))
            return
        worker_ns = time.monotonic_ns() - begin
        self._mailbox.send(
            StepResult(
                plan.step_id,
                self._rank,
                answer.seqs,
                answer.native_ns,
                answer.all_reduce_ns,
                worker_ns,
                answer.mask_wait_ns,
                answer.draft_ns,
                answer.tower_ns,
            )
        )

    def _profile(self, request: ProfileRequest) -> None:
        """Answer a request, immediately or when the ceilings are measured. A newer request replaces an open one."""
        if request.ceilings:
            self._measuring = request, self._model.measure_ceilings()
        else:
            self._mailbox.send(self._model.profile(request))

    def _measure(self) -> bool:
        """Measure a slice of the ceilings, and answer after the last slice. Return False with nothing to measure."""
        if self._measuring is None:
            return False
        request, slices = self._measuring
        try:
            next(slices)
        except StopIteration as end:
            self._measuring = None
            self._mailbox.send(self._model.profile(request, end.value))
        return True

    def _use_pause(self) -> bool:
        """Measure a slice of the ceilings, or touch part of the KV caches' memory. Return False when there is nothing
        to do now."""
        return self._measure() or any(each.advance() for each in self._kv_populations)

    def _send_stats(self) -> None:
        now = time.monotonic()
        if now < self._next_stats:
            return
        self._next_stats = now + _STATS_INTERVAL_S
        self._mailbox.send(WorkerStats(self._rank, _rss_bytes(), self._model.misplaced_pages()))


def _rss_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
