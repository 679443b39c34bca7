"""The part of a step that a pipeline stage has besides running its blocks: rows in, rows out."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace
from numaserve.workers.interface.protocol import SamplingParams, SeqPlan, StepPlan
from numaserve.workers.layers.stage import RESIDUAL
from numaserve.workers.process.links import StageLinks
from numaserve.workers.program.outside import OutsideRows

_UNSAMPLED = SamplingParams()


class StageSteps:
    """Receives the rows of a step before it, and sends the rows after it."""

    def __init__(self, links: StageLinks, outside: OutsideRows) -> None:
        self._links = links
        self._given = None if links.is_first else outside.given(RESIDUAL)
        self._kept = None if links.is_last else outside.kept(RESIDUAL)

    def begin(self, plan: StepPlan) -> StepPlan:
        """Wait for the rows of a plan, and return the part of the plan that is this stage's: only the last stage
        samples. Raises `ValueError` for a plan that the stage before has refused."""
        if self._given is not None:
            self._links.receive(plan.step_id, self._given[: _tokens(plan)])
        return plan if self._kept is None else replace(plan, seqs=[_unsampled(seq) for seq in plan.seqs], drafts=UNSET)

    def end(self, plan: StepPlan) -> None:
        """Send the rows of a step to the next stage."""
        if self._kept is not None:
            self._links.send(plan.step_id, self._kept[: _tokens(plan)])

    def refuse(self, plan: StepPlan) -> None:
        """Report to the next stage that a plan cannot be run."""
        self._links.refuse(plan.step_id)


def _tokens(plan: StepPlan) -> int:
    return sum(seq.num_tokens for seq in plan.seqs)


def _unsampled(seq: SeqPlan) -> SeqPlan:
    """Return the same tokens without samples, whose masks and penalties only the last stage knows."""
    init = seq.init
    if init is not None:
        init = replace(init, sampling=_UNSAMPLED, prompt_history=[], output_history=[])
    return replace(seq, init=init, sample=False, prompt_logprobs=[])
