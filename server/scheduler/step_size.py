"""The limit on the tokens of a step, where the operator leaves it out."""

from numaserve.server.costs.cost_model import CostModel
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.server.scheduler.step import InFlight
from numaserve.server.scheduler.step_costs import StepCosts, model_seconds
from numaserve.server.scheduler.step_time import shortest_economical
from numaserve.workers.interface.protocol import StepResult
from numaserve.workers.interface.step_lengths import ECONOMICAL_STEP_COST


class StepSize:
    """The shortest steps whose tokens cost little more than the tokens of the longest steps.

    Each step of a prompt reads all weights once more. Where reading takes the time, longer steps are faster; where
    arithmetic does, newcomers wait longer for nothing.

    Decodes show what reading takes, and the cost model adds the time of arithmetic to it. Kernels that read while they
    multiply take the longer of both times, so that the sum promises too much of longer steps. A model of the long steps
    alone begins with the rates of the sum and corrects them: the first longer steps show whether they pay.
    """

    def __init__(self, config: SchedulerConfig, costs: StepCosts) -> None:
        self._config = config
        self._costs = costs
        self._least = config.least_step_tokens
        self._long_steps: CostModel | None = None
        self._tokens = config.shortest_limit

    @property
    def tokens(self) -> int:
        """The most tokens of the next step: `shared_step_tokens` where that is the operator's, and `least_step_tokens`
        as long as too little is known."""
        return self._tokens

    def observe(self, step: InFlight, result: StepResult) -> None:
        """Learn from a step that `StepCosts` has observed."""
        if self._least is None or step.tokens < self._least // 2:
            return
        if self._costs.expected(step) is None:
            self._long_steps = None  # other weights, or new workers
        elif self._long_steps is None:
            self._long_steps = self._costs.served.branch()
        else:
            self._long_steps.observe(step.terms, model_seconds(result))
        self._tokens = self._least if self._long_steps is None else self._economical(self._long_steps, self._least)

    def _economical(self, long_steps: CostModel, least: int) -> int:
        """Return the shortest whole pages, at least `least` tokens, that cost little more for each token."""
        page, most = self._config.page_size, self._config.shared_step_tokens
        lengths = range(-(-least // page) * page, most + 1, page)
        if not lengths:
            return most
        models = [long_steps] if self._costs.draft_model is None else [long_steps, self._costs.draft_model]

        def cost(tokens: int) -> float:
            return sum(_seconds(model, tokens, lengths[-1]) for model in models) / tokens

        return lengths[shortest_economical(lengths, cost, ECONOMICAL_STEP_COST)]


def _seconds(model: CostModel, tokens: int, longest: int) -> float:
    """Return the mean time of a step with the next `tokens` tokens of a prompt of `longest` tokens. Attention takes the
    same time in total however the prompt is divided."""
    work = model.begin()
    once, weights, products, _, _ = work.terms(0, tokens, 1)
    _, _, _, kv_bytes, kv_flops = work.terms(0, longest, 1)
    part = tokens / longest
    return model.predict((once, weights, products, part * kv_bytes, part * kv_flops))
