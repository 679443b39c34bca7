"""Sequences and plans for tests of the scheduler and its neighbours."""

from collections.abc import Sequence
from typing import Any, Protocol

from numaserve.server.scheduler.request import Request
from numaserve.server.scheduler.sequence import Sequence as ScheduledSequence
from numaserve.workers.interface.protocol import SamplingParams, StepPlan


def sequence(
    name: str, prompt: Sequence[int], sampling: SamplingParams, max_new_tokens: int, **fields: Any
) -> ScheduledSequence:
    """A sequence of a request with the same name and with these `fields`."""
    return ScheduledSequence(name, Request(name, prompt, sampling, max_new_tokens, **fields))


class Plans(Protocol):
    """A scheduler, or what has one."""

    def schedule(self) -> StepPlan | None: ...


def planned(scheduler: Plans) -> StepPlan:
    """The next plan, which there has to be."""
    plan = scheduler.schedule()
    assert plan is not None
    return plan
