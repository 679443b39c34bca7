"""What steps take: of the model, and of the draft model before it."""

from collections.abc import Sequence

from numaserve.server.costs.cost_model import CostModel
from numaserve.server.scheduler.step import InFlight
from numaserve.workers.interface.protocol import OperationTerms, StepResult


class StepCosts:
    """The two models of costs, which learn from each step."""

    def __init__(self, *, draft_model: bool) -> None:
        self.served = CostModel()
        self.draft_model = CostModel() if draft_model else None

    def describe(self, ranks: Sequence[Sequence[OperationTerms]], drafts: Sequence[Sequence[OperationTerms]]) -> None:
        """Take what each rank tells of the operations of the model, and of those of the draft model."""
        self.served.describe(ranks)
        if self.draft_model is not None:
            self.draft_model.describe(drafts)

    def expected(self, step: InFlight) -> float | None:
        """Seconds of a step that can be relied on; None as long as too few steps were seen for that."""
        served = self.served.expected(step.terms)
        if served is None or self.draft_model is None or not any(step.draft_terms):
            return served
        draft = self.draft_model.expected(step.draft_terms)
        return None if draft is None else served + draft

    def request_seconds(self, prompt: int, output: int, *, chunk: int, batch: int) -> float:
        """As `CostModel.request_seconds`, with a draft model that reads the prompt, too. What it guesses of the output
        takes less than it gives, or is not asked for."""
        served = self.served.request_seconds(prompt, output, chunk=chunk, batch=batch)
        if self.draft_model is None:
            return served
        return served + self.draft_model.request_seconds(prompt, 0, chunk=chunk, batch=batch)

    def observe(self, step: InFlight, result: StepResult) -> None:
        """Take in the time of a step. Waiting for masks is no work of it, and says nothing of the next one."""
        self.served.observe(step.terms, (result.worker_ns - result.draft_ns - result.mask_wait_ns) * 1e-9)
        if self.draft_model is not None and any(step.draft_terms):
            self.draft_model.observe(step.draft_terms, result.draft_ns * 1e-9)
