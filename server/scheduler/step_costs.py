"""The time of steps: of the model, and of the workers' drafter before it."""

from collections.abc import Sequence

from numaserve.server.costs.cost_model import CostModel
from numaserve.server.scheduler.step import InFlight
from numaserve.workers.interface.protocol import OperationTerms, StepResult


def model_seconds(result: StepResult) -> float:
    """Return the seconds of a step without drafting. The wait for masks is not part of the step's work, and says
    nothing about the next step."""
    return (result.worker_ns - result.draft_ns - result.mask_wait_ns) * 1e-9


class StepCosts:
    """The two cost models, which learn from each step."""

    def __init__(self, *, draft_model: bool) -> None:
        self.served = CostModel()
        self.draft_model = CostModel() if draft_model else None

    def describe(self, ranks: Sequence[Sequence[OperationTerms]], drafts: Sequence[Sequence[OperationTerms]]) -> None:
        """Take each rank's terms of the model's operations, and of the drafter's operations."""
        self.served.describe(ranks)
        if self.draft_model is not None:
            self.draft_model.describe(drafts)

    def expected(self, step: InFlight) -> float | None:
        """Return the reliable prediction of a step in seconds; None while too few steps were observed."""
        served = self.served.expected(step.terms)
        if served is None or self.draft_model is None or not any(step.draft_terms):
            return served
        draft = self.draft_model.expected(step.draft_terms)
        return None if draft is None else served + draft

    def request_seconds(self, prompt: int, output: int, *, chunk: int, batch: int) -> float:
        """Return the seconds of a request as `CostModel.request_seconds`, with a drafter that also reads the prompt.
        Draft tokens of the output take less than they give, or are not made."""
        served = self.served.request_seconds(prompt, output, chunk=chunk, batch=batch)
        if self.draft_model is None:
            return served
        return served + self.draft_model.request_seconds(prompt, 0, chunk=chunk, batch=batch)

    def predicted(self, step: InFlight) -> float | None:
        """Return the prediction of a step without drafting, in seconds; None before a step was observed."""
        return self.served.predict(step.terms) if self.served.predicts else None

    def observe(self, step: InFlight, result: StepResult) -> None:
        """Note the time of a step."""
        self.served.observe(step.terms, model_seconds(result))
        if self.draft_model is not None and any(step.draft_terms):
            self.draft_model.observe(step.draft_terms, result.draft_ns * 1e-9)
