"""Defects in what waits, and in what gives up waiting."""

import asyncio
from collections.abc import Callable

from numaserve.server.common.patience import Patience, PatientTimer
from numaserve.server.engine.recovery.outage import Outage
from numaserve.server.engine.requests.timeouts import Timeouts
from numaserve.server.engine.steps.loop import StepLoop
from numaserve.server.supervisor.judge import Judge, Verdict
from numaserve.server.supervisor.progress import ProgressWatch

from tests.simulation.defects.registry import defect


@defect(PatientTimer, "_look", first_seed=10)
def a_watch_is_not_armed_again(_right: Callable[..., None], timer: PatientTimer) -> None:
    """Where it looks before the time is over."""
    timer._timer = None
    if timer._patience is not None and timer._patience.ends():
        timer._ended()


@defect(Patience, "ends")
def an_absence_counts(_right: Callable[..., bool], patience: Patience) -> bool:
    """Workers are judged by the time in which nobody read what they answered."""
    now = patience._clock()
    patience._spent += now - patience._looked
    patience._looked = now
    return patience._spent >= patience.seconds


@defect(Judge, "look", first_seed=80)
def a_starved_worker_counts_as_dead(right: Callable[..., Verdict], judge: Judge, *looks: object) -> Verdict:
    """Workers are judged by the time in which they had no processor."""
    return right(judge, *looks)._replace(excused_s=0.0)


@defect(Judge, "look", first_seed=39)
def progress_counts_for_nothing(right: Callable[..., Verdict], judge: Judge, *looks: object) -> Verdict:
    """Workers are judged by the time that a step takes."""
    return right(judge, *looks)._replace(progressed=False)


@defect(Judge, "look")
def a_worker_that_wants_no_processor_is_excused(right: Callable[..., Verdict], judge: Judge, *looks: object) -> Verdict:
    """Stopped workers are awaited like starved ones."""
    verdict = right(judge, *looks)
    return verdict._replace(excused_s=verdict.elapsed_s)


@defect(Outage, "workers_down", first_seed=37)
def requests_wait_by_the_clock(right: Callable[..., None], outage: Outage) -> None:
    """The time in which nobody could see that there are new workers counts."""
    right(outage)
    outage._timer.stop()
    began = outage._began

    def look() -> None:
        if outage._began == began:
            outage._run_out()

    asyncio.get_running_loop().call_later(outage._timeout_s, look)


@defect(Outage, "end", first_seed=65)
def an_outage_goes_on(_right: Callable[..., None], _outage: Outage) -> None:
    """Though new workers have answered: requests that they serve are given up."""


@defect(Timeouts, "_arm", first_seed=710)
def only_plans_look_at_the_time(_right: Callable[..., None], _timeouts: Timeouts) -> None:
    """A request whose time passes while there are no workers goes on waiting for them."""


@defect(StepLoop, "halt")
def the_watch_goes_on_without_workers(right: Callable[..., None], steps: StepLoop) -> None:
    """The answers that the dead owe are awaited from the living."""
    watch, steps._watch = steps._watch, ProgressWatch(1.0, lambda: None)
    right(steps)
    steps._watch = watch


@defect(StepLoop, "_rest", first_seed=4170)
def the_heart_does_not_beat(_right: Callable[..., None], _steps: StepLoop) -> None:
    """Workers that freeze while they are idle are noticed by the next client."""
