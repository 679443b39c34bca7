"""The times of a step and of its stages."""

from dataclasses import dataclass

from numaserve.server.metrics.labels import Stage, StepKind
from numaserve.server.metrics.metrics import Metrics
from numaserve.workers.interface.protocol import StepPlan, StepResult


@dataclass(slots=True)
class StepTimes:
    """The times of one step on its way to the workers, in monotonic seconds."""

    scheduling: float  # when planning began
    scheduled: float
    sent: float

    def record(
        self, metrics: Metrics, plan: StepPlan, result: StepResult, *, begun: float, answered: float, processed: float
    ) -> None:
        """Report the step to the metrics.

        `begun` is when the workers could start the step: when it was sent, or later when they were still busy with the
        step before. The step times of a busy server therefore add up to the elapsed time, whether it plans ahead or
        not. `receive` is the rest outside of the worker: transfer in both directions, and waiting for the front end.
        """
        worker = result.worker_ns * 1e-9
        stages: dict[Stage, float] = {
            "schedule": self.scheduled - self.scheduling,
            "send": self.sent - self.scheduled,
            "native": result.native_ns * 1e-9,
            "all_reduce": result.all_reduce_ns * 1e-9,
            "receive": max(0.0, answered - begun - worker),
            "detokenize": processed - answered,
        }
        if result.mask_wait_ns:
            stages["mask_wait"] = result.mask_wait_ns * 1e-9
        metrics.step(step_kind(plan), answered - begun, stages, tokens=tokens_of(plan))


def step_kind(plan: StepPlan) -> StepKind:
    """Return the kind of a plan: prompts, output tokens or both. A prompt's last single token counts as output."""
    decoding = sum(
        seq.init is None and seq.num_tokens - drafts == 1
        for seq, drafts in zip(plan.seqs, plan.drafts_of_each, strict=True)
    )
    if decoding == len(plan.seqs):
        return "decode"
    return "mixed" if decoding else "prefill"


def tokens_of(plan: StepPlan) -> int:
    """Return the number of tokens that a plan computes. A token planned ahead, with unknown id, counts as one."""
    return sum(seq.num_tokens for seq in plan.seqs)
