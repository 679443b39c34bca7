"""The step loop: how long a step may take, and when the workers count as idle."""

import asyncio
import time

import pytest
from numaserve.server.engine.clock import Clock
from numaserve.server.engine.steps.deadlines import LEAST_S, TIMES_PREDICTED, StepDeadlines
from numaserve.server.engine.steps.loop import StepHooks, StepLoop
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.workers.interface.protocol import OperationTerms, SamplingParams, SeqResult, StepPlan, StepResult

from tests.support.plan_limits import plan_limits
from tests.support.sequences import sequence


def test_a_step_has_twenty_times_what_it_should_take_within_bounds() -> None:
    deadlines = StepDeadlines(60.0)
    assert deadlines.of(None) == 60.0
    assert deadlines.of(0.01) == LEAST_S
    assert deadlines.of(1.0) == TIMES_PREDICTED
    assert deadlines.of(30.0) == 60.0


def _loop(
    scheduler: Scheduler,
    sent: list[StepPlan],
    beat_s: float | None = None,
    *,
    depth: int = 1,
    clock: Clock = time.monotonic,
) -> StepLoop:
    hooks = StepHooks(
        planning=lambda _now: None,
        send=sent.append,
        admitted=lambda _sequence, _now: None,
        updated=lambda _updates, _now: None,
        failed=lambda _sequences, _message: None,
        drafted=lambda _unchecked: None,
        masked=lambda _step, _rows: None,
        void=lambda _step: None,
        look=lambda _ranks, _with_times: {},
        starved=lambda _seconds, _elapsed: None,
        broken=lambda death: None,
        planned=lambda: None,
    )
    deadlines = StepDeadlines(60.0)
    return StepLoop(
        scheduler, hooks, Metrics("m"), world_size=1, depth=depth, deadlines=deadlines, beat_s=beat_s, clock=clock
    )


def _scheduler() -> Scheduler:
    return Scheduler(plan_limits(num_pages=16, context_length=256))


async def test_plans_carry_the_longest_deadline_until_steps_can_be_predicted_and_then_a_short_one() -> None:
    sent: list[StepPlan] = []
    scheduler = _scheduler()
    scheduler.costs.describe([[OperationTerms("linear", row_flops=1e9)]])
    loop = _loop(scheduler, sent)
    scheduler.add(sequence("a", [1, 2, 3], SamplingParams(), 40))
    loop.start()
    for _ in range(40):
        await asyncio.sleep(0)
        plan = sent[-1]
        loop.on_answer(StepResult(plan.step_id, 0, [SeqResult(7)], 1, 0, worker_ns=10_000_000))
    loop.halt()
    assert sent[0].deadline_s == 60.0
    assert sent[-1].deadline_s == LEAST_S


async def test_workers_that_only_beat_are_idle() -> None:
    """Else those that are stopped just then would not be given the time to end what they do besides."""
    sent: list[StepPlan] = []
    scheduler = _scheduler()
    loop = _loop(scheduler, sent, beat_s=60.0)
    loop.start()
    while not sent:  # the first beat leaves at once
        await asyncio.sleep(0)
    assert loop.idle
    loop.on_answer(StepResult(sent[0].step_id, 0, [], 1, 0, worker_ns=1))
    scheduler.add(sequence("a", [1, 2, 3], SamplingParams(), 40))
    loop.wake()
    while len(sent) < 2:
        await asyncio.sleep(0)
    assert not loop.idle
    loop.halt()


@pytest.mark.parametrize("depth", [1, 2])
async def test_the_scheduler_is_told_for_how_long_workers_rest_for_want_of_a_plan(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[StepPlan] = []
    pauses: list[float] = []
    now = 100.0
    scheduler = _scheduler()
    monkeypatch.setattr(scheduler, "paused", pauses.append)
    loop = _loop(scheduler, sent, depth=depth, clock=lambda: now)
    scheduler.add(sequence("a", [1, 2, 3], SamplingParams(), 40))
    loop.start()
    await asyncio.sleep(0)
    for step in range(4):
        now += 0.0105
        loop.on_answer(StepResult(sent[step].step_id, 0, [SeqResult(7)], 1, 0, worker_ns=10_000_000))
    loop.halt()
    # The first plan was made for a request, and with two in flight the workers have the next one already.
    assert pauses == pytest.approx([0.0005] * 3 if depth == 1 else [])
