"""The time of steps: of the model, and of the workers' drafter and the vision tower before it."""

import math
from collections.abc import Sequence

from numaserve.server.costs.cost_model import CostModel
from numaserve.server.costs.cost_table import Terms
from numaserve.server.scheduler.overrun import Overrun
from numaserve.server.scheduler.step import InFlight
from numaserve.server.scheduler.tower_runs import RunCost
from numaserve.workers.interface.protocol import OperationTerms, StepResult

_FASTER_THAN_FIRST_ESTIMATE = 20.0  # a core with tiles multiplies that much faster than `CostModel` assumes at first


def model_seconds(result: StepResult) -> float:
    """Return the seconds of a step without drafting and the tower. The wait for masks is not part of the step's work,
    and says nothing about the next step."""
    return (result.worker_ns - result.draft_ns - result.tower_ns - result.mask_wait_ns) * 1e-9


class StepCosts:
    """The cost models, which learn from each step.

    All tiles have the same size, so each run of the tower has the same work.
    """

    def __init__(self, *, draft_model: bool, tower: bool = False) -> None:
        self.served = CostModel()
        self.draft_model = CostModel() if draft_model else None
        self.tower = CostModel() if tower else None
        self._tower_parts: Sequence[float] = ()  # see `Ready`
        self._with_images = Overrun()  # steps that run the tower, or read its features
        self.tower_s = 0.0  # seconds of all runs so far

    def describe(
        self,
        ranks: Sequence[Sequence[OperationTerms]],
        drafts: Sequence[Sequence[OperationTerms]],
        towers: Sequence[Sequence[OperationTerms]] = (),
        tower_parts: Sequence[Sequence[float]] = (),
    ) -> None:
        """Take each rank's terms of the operations of the model, of the drafter and of the tower, and the shares of the
        parts of the tower's runs."""
        self.served.describe(ranks)
        if self.draft_model is not None:
            self.draft_model.describe(drafts)
        if self.tower is not None:
            self.tower.describe(towers)
            self._tower_parts = next(iter(tower_parts), ())

    def expected(self, step: InFlight) -> float | None:
        """Return the reliable prediction of a step in seconds; None while too few steps were observed."""
        seconds = self.served.expected(step.terms)
        if seconds is not None and self.draft_model is not None and any(step.draft_terms):
            seconds = _plus(seconds, self.draft_model.expected(step.draft_terms))
        if seconds is not None and self.tower is not None and step.run_share:
            seconds = _plus(seconds, self.tower.expected(_terms_of_runs(self.tower, step.run_share)))
        return seconds

    def request_seconds(self, prompt: int, output: int, *, chunk: int, batch: int, tiles: int = 0) -> float:
        """Return the seconds of a request as `CostModel.request_seconds`, with a drafter that also reads the prompt and
        with the tower's runs. Draft tokens of the output take less than they give, or are not made."""
        seconds = self.served.request_seconds(prompt, output, chunk=chunk, batch=batch)
        if self.draft_model is not None:
            seconds += self.draft_model.request_seconds(prompt, 0, chunk=chunk, batch=batch)
        if self.tower is not None and tiles:
            seconds += self.tower.expected(_terms_of_runs(self.tower, tiles)) or 0.0
        return seconds

    def prompt_seconds(self, start: int, length: int) -> float:
        """Return the seconds of `length` tokens of a prompt from position `start` on. Before a step was observed the
        result is the time on a fast machine, so that nobody waits for a disk that is slower than computing."""
        seconds = _seconds_of(self.served, start, length)
        return seconds if self.draft_model is None else seconds + _seconds_of(self.draft_model, start, length)

    def of_run(self, chunk: int) -> RunCost:
        """Return the cost of a run of the tower, next to prompts in steps of `chunk` tokens."""
        parts = self._tower_parts or (1.0,)
        if self.tower is None or not self.tower.predicts:
            return RunCost(math.inf, 0.0, parts, self._with_images.factor)
        seconds = self.tower.predict(_terms_of_runs(self.tower, 1))
        if not self.served.predicts:
            return RunCost(seconds, 0.0, parts, self._with_images.factor)
        tokens = seconds * chunk / self.served.predict(self.served.begin().terms(0, chunk))
        return RunCost(seconds, tokens, parts, self._with_images.factor)

    def predicted(self, step: InFlight) -> float | None:
        """Return the prediction of a step without drafting and the tower, in seconds; None before a step was
        observed."""
        return self.served.predict(step.terms) if self.served.predicts else None

    def observe(self, step: InFlight, result: StepResult) -> None:
        """Note the time of a step."""
        expected = self.expected(step) if step.run_share or step.places else None
        if expected is not None:
            self._with_images.observe(expected, (result.worker_ns - result.mask_wait_ns) * 1e-9)
        if any(step.terms):
            self.served.observe(step.terms, model_seconds(result))
        if self.draft_model is not None and any(step.draft_terms):
            self.draft_model.observe(step.draft_terms, result.draft_ns * 1e-9)
        if self.tower is not None and step.run_share:
            self.tower.observe(_terms_of_runs(self.tower, step.run_share), result.tower_ns * 1e-9)
            self.tower_s += result.tower_ns * 1e-9


def _seconds_of(model: CostModel, start: int, length: int) -> float:
    seconds = model.predict(model.begin().terms(start, length))
    return seconds if model.predicts else seconds / _FASTER_THAN_FIRST_ESTIMATE


def _plus(seconds: float, more: float | None) -> float | None:
    return None if more is None else seconds + more


def _terms_of_runs(tower: CostModel, runs: float) -> Terms:
    once, weights, products, kv_bytes, kv_flops = tower.begin().terms(0, 1)
    return runs * once, runs * weights, runs * products, runs * kv_bytes, runs * kv_flops
