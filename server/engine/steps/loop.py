"""The step loop: tracks plans in flight and their answers, and sends the next plan."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace
from numaserve.server.common.death import Death
from numaserve.server.engine.clock import Clock
from numaserve.server.engine.steps.deadlines import StepDeadlines
from numaserve.server.engine.steps.times import StepTimes
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import Sequence, SequenceUpdate
from numaserve.server.scheduler.step import MaskedRow
from numaserve.server.speculation.reports import Unchecked
from numaserve.server.supervisor.judge import RankLook
from numaserve.server.supervisor.progress import ProgressWatch, Witness
from numaserve.workers.interface.protocol import Failure, StepPlan, StepResult

logger = logging.getLogger(__name__)

_AT_ONCE_S = 0.02  # longest time from an answer to a plan that was made because of it


@dataclass(slots=True)
class _Step:
    plan: StepPlan
    times: StepTimes
    waiting_for: set[int] = field(default_factory=set)
    result: StepResult | None = None  # the leader's
    failure: Failure | None = None


@dataclass(frozen=True)
class StepHooks:
    """Callbacks of the step loop, all called in the event loop."""

    planning: Callable[[float], None]  # a step is about to be planned
    send: Callable[[StepPlan], None]
    admitted: Callable[[Sequence, float], None]  # left the queue for the first time
    updated: Callable[[list[SequenceUpdate], float], None]
    failed: Callable[[list[Sequence], str], None]  # by a step that the workers survived
    drafted: Callable[[list[Unchecked]], None]  # planning has made such draft tokens
    masked: Callable[[int, list[MaskedRow]], None]  # the plan of this step was sent, and has such rows
    void: Callable[[int], None]  # the result of this step will be ignored
    # Looks at those ranks; the second argument: whether to read their processor times.
    look: Callable[[Collection[int], bool], Mapping[int, RankLook]]
    starved: Callable[[Mapping[int, float], float], None]  # see `Witness`
    broken: Callable[[Death], None]  # the workers can no longer be used
    planned: Callable[[], None]  # all plans that are possible now were sent


class StepLoop:
    """Drives the scheduler. Results and requests wake it; it has no task of its own.

    With `depth` 1 a plan leaves when the plan before it was answered and processed. This is the plain loop, and the
    oracle for `depth` 2, in which plan N+1 leaves before the answer to plan N is in.

    A step counts as answered when every rank has answered. The next plan would wait for the slowest rank anyway, and an
    error of any rank is known before the result is used. Only the answer of the `leader` has results of sequences.

    After `beat_s` seconds without an answer, and immediately when there are new workers, an empty plan is sent. Every
    thread of every rank meets the others in every collective, so a hung rank is noticed before a request comes. A ping
    of the worker's Python would prove less: its threads or its ring may be hung.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        hooks: StepHooks,
        metrics: Metrics,
        *,
        world_size: int,
        leader: int = 0,
        depth: int,
        deadlines: StepDeadlines,
        beat_s: float | None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._beat_s = beat_s
        self._beat_timer: asyncio.TimerHandle | None = None
        self._scheduler = scheduler
        self._clock = clock
        self._hooks = hooks
        self._metrics = metrics
        self._ranks = frozenset(range(world_size))
        self._leader = leader
        self._depth = depth
        self._deadlines = deadlines
        self._in_flight: deque[_Step] = deque()
        self._watch = ProgressWatch(deadlines.longest_s, self._stalled, Witness(self._look, hooks.starved))
        self._running = False
        self._wake_planned = False
        self._last_answered = float("-inf")
        self.steps = 0
        self.beats = 0  # answered empty plans

    @property
    def idle(self) -> bool:
        """True if no useful answer is awaited; the answer to a heartbeat is not useful to any request."""
        return all(step.plan.is_empty for step in self._in_flight)

    def seconds_without_progress(self) -> float:
        """Return the seconds of process run time since the workers last answered or were first asked; 0 while idle."""
        return self._watch.waited_s

    def start(self) -> None:
        """Start: new workers without any state are ready."""
        self._running = True
        self.wake()

    def halt(self) -> None:
        """Stop: the workers and the plans in flight are lost."""
        self._running = False
        self._in_flight.clear()
        self._watch.stop()
        self._last_answered = float("-inf")
        if self._beat_timer is not None:
            self._beat_timer.cancel()
            self._beat_timer = None

    def wake(self) -> None:
        """Plan soon. All requests that arrive in the same turn of the event loop go into the same step."""
        if self._running and not self._wake_planned:
            self._wake_planned = True
            asyncio.get_running_loop().call_soon(self._woken)

    def on_answer(self, message: StepResult | Failure) -> None:
        """Process the answer of a rank to a step."""
        step = next((step for step in self._in_flight if step.plan.step_id == message.step_id), None)
        if step is None or message.rank not in step.waiting_for:
            logger.warning(
                "worker %d returned a result for step %d, which was not in progress", message.rank, message.step_id
            )
            return
        step.waiting_for.discard(message.rank)
        self._watch.answered()
        if isinstance(message, Failure):
            step.failure = step.failure or message
        elif message.rank == self._leader:
            step.result = message
        try:
            while self._in_flight and not self._in_flight[0].waiting_for:
                self._complete(self._in_flight.popleft())
            self._pump()
        except Exception as error:
            # The state of this process is in doubt; a new group starts from a clean state.
            logger.exception("the step loop failed")
            self._hooks.broken(Death("mismatch", f"internal error in the step loop: {error!r}"))

    def _woken(self) -> None:
        self._wake_planned = False
        try:
            self._pump()
        except Exception as error:
            logger.exception("planning a step failed")
            self._hooks.broken(Death("mismatch", f"internal error in planning a step: {error!r}"))

    def _pump(self) -> None:
        while self._running and len(self._in_flight) < self._depth:
            scheduling = self._clock()
            self._hooks.planning(scheduling)
            plan = self._scheduler.schedule()
            if self._scheduler.unchecked:
                self._hooks.drafted(self._scheduler.unchecked)
            if plan is None:
                self._rest()
                break
            self._send(plan, scheduling)
            if self._scheduler.masked:
                self._hooks.masked(plan.step_id, self._scheduler.masked)
            for sequence in self._scheduler.newly_admitted:
                self._hooks.admitted(sequence, scheduling)
        self._hooks.planned()
        if self._in_flight:
            self._watch.allow(self._in_flight[0].plan.deadline_s)

    def _send(self, plan: StepPlan, scheduling: float) -> None:
        """Send the scheduler's last plan, with a deadline."""
        expected_s = self._scheduler.step_costs.expected(self._scheduler.in_flight[-1])
        plan = replace(plan, deadline_s=self._deadlines.of(expected_s))
        scheduled = self._clock()
        self._hooks.send(plan)
        self._in_flight.append(_Step(plan, StepTimes(scheduling, scheduled, self._clock()), set(self._ranks)))
        self._watch.expect(len(self._ranks))

    def _rest(self) -> None:
        """Schedule a heartbeat after the last answer, unless steps are in flight or a timer is already running."""
        if self._beat_s is not None and not self._in_flight and self._beat_timer is None:
            seconds = max(0.0, self._last_answered + self._beat_s - self._clock())
            self._beat_timer = asyncio.get_running_loop().call_later(seconds, self._beat)

    def _beat(self) -> None:
        self._beat_timer = None
        now = self._clock()
        if self._beat_s is not None and now < self._last_answered + self._beat_s:  # steps ran meanwhile
            self._rest()
        elif not self._in_flight:
            self._send(self._scheduler.beat(), now)
            self._watch.allow(self._in_flight[0].plan.deadline_s)

    def _complete(self, step: _Step) -> None:
        answered = self._clock()
        begun = max(step.times.sent, self._last_answered)
        before, self._last_answered = self._last_answered, answered
        self.steps += not step.plan.is_empty
        self.beats += step.plan.is_empty
        if step.failure is not None:
            logger.error("step %d failed in worker %d: %s", step.plan.step_id, step.failure.rank, step.failure.message)
            self._hooks.failed(self._scheduler.fail_step(step.plan.step_id), step.failure.message)
            for later in self._in_flight:
                self._hooks.void(later.plan.step_id)
        elif step.result is not None:
            if step.plan.seqs and 0 <= step.times.scheduling - before < _AT_ONCE_S:
                # The plan was made because of the answer to the plan before it.
                self._scheduler.paused(max(0.0, answered - before - step.result.worker_ns * 1e-9))
            self._hooks.updated(self._scheduler.apply(step.result), answered)
            if step.plan.seqs:
                step.times.record(
                    self._metrics, step.plan, step.result, begun=begun, answered=answered, processed=self._clock()
                )

    def _look(self, with_times: bool) -> Mapping[int, RankLook]:
        return self._hooks.look(self._in_flight[0].waiting_for if self._in_flight else (), with_times)

    def _stalled(self) -> None:
        missing = sorted(self._in_flight[0].waiting_for) if self._in_flight else []
        ranks = ", ".join(map(str, missing))
        self._hooks.broken(Death("stall", f"worker {ranks} returned no step result for {self._watch.deadline_s:g} s"))
