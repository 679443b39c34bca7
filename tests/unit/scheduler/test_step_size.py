"""Steps become as long as it pays, on machines that read, multiply or overlap both."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest
from numaserve.server.costs.cost_model import CostModel
from numaserve.server.costs.cost_table import Terms
from numaserve.server.scheduler.step import InFlight
from numaserve.server.scheduler.step_costs import StepCosts
from numaserve.server.scheduler.step_size import StepSize
from numaserve.workers.interface.protocol import OperationTerms, StepResult

from tests.support.plan_limits import plan_limits

LEAST, MOST = 512, 2048
READ = 30e9  # bytes per second
ATTENTION = OperationTerms("attention", position_bytes=65_536, pair_flops=131_072)
DENSE = [OperationTerms("linear", weight_bytes=2_400_000_000, row_flops=2.4e9), ATTENTION]
MIXTURE = [
    OperationTerms("linear", weight_bytes=2_000_000_000, row_flops=2e9),
    OperationTerms("moe", row_flops=2e9, expert_bytes=40_000_000_000, num_experts=256, top_k=8),
    ATTENTION,
]


def machine(flops_per_byte: float, *, overlaps: bool = True) -> Callable[[Terms], float]:
    """Return the seconds of a step on a machine that multiplies `flops_per_byte` times as fast as it reads."""

    def seconds(terms: Terms) -> float:
        once, weights, products, kv_bytes, kv_flops = terms
        read, multiply = weights / READ, products / READ / flops_per_byte
        both = max(read, multiply) if overlaps else read + multiply
        return 1e-4 * once + both + kv_bytes / READ + kv_flops / READ / flops_per_byte

    return seconds


@dataclass
class Served:
    """A server that computes prompts alternately with their answers, as `StepSize` cuts them."""

    operations: list[OperationTerms]
    seconds: Callable[[Terms], float]
    drafter: list[OperationTerms] | None = None
    least: int | None = LEAST
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        config = plan_limits(1000, 8192, max_step_tokens=MOST, least_step_tokens=self.least)
        self.costs, self.steps = StepCosts(draft_model=self.drafter is not None), count()
        self.costs.describe([self.operations], [self.drafter or []])
        self.size = StepSize(config, self.costs)

    def step(self, start: int, tokens: int) -> None:
        own = self.terms(self.costs.served, start, tokens)
        draft_model = self.costs.draft_model
        draft = None if draft_model is None else self.terms(draft_model, start, tokens)
        noise = max(0.5, self.rng.gauss(1.0, 0.03))
        record = InFlight(next(self.steps), terms=own, tokens=tokens)
        draft_ns = 0
        if draft is not None:
            record.draft_terms, draft_ns = draft, round(self.seconds(draft) * noise * 1e9)
        worker_ns = round(self.seconds(own) * noise * 1e9) + draft_ns
        result = StepResult(record.step_id, 0, [], 0, 0, worker_ns=worker_ns, draft_ns=draft_ns)
        self.costs.observe(record, result)
        self.size.observe(record, result)

    @staticmethod
    def terms(model: CostModel, start: int, tokens: int) -> Terms:
        work = model.begin()
        work.add(start, tokens, 1)
        return work.terms()

    def run(self, requests: int = 40) -> list[int]:
        """Serve requests; return the limit after each."""
        limits = []
        for _ in range(requests):
            length, start = self.rng.randrange(600, 4000), 0
            while start < length:
                self.step(start, min(self.size.tokens, length - start))
                start += self.size.tokens
            for position in range(length, length + 16):
                self.step(position, 1)
            limits.append(self.size.tokens)
        return limits


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize(("operations", "flops_per_byte"), [(DENSE, 2000), (MIXTURE, 200)])
def test_steps_grow_where_reading_takes_the_time(
    operations: list[OperationTerms], flops_per_byte: float, overlaps: bool
) -> None:
    limits = Served(operations, machine(flops_per_byte, overlaps=overlaps)).run()
    assert min(limits[3:]) > 0.85 * MOST and min(limits[-10:]) > 0.92 * MOST


@pytest.mark.parametrize("overlaps", [False, True])
def test_steps_stay_short_where_arithmetic_takes_the_time(overlaps: bool) -> None:
    assert set(Served(DENSE, machine(10, overlaps=overlaps)).run()) == {LEAST}


@pytest.mark.parametrize(("operations", "flops_per_byte"), [(DENSE, 200), (MIXTURE, 10)])
def test_steps_get_short_again_where_reading_turns_out_to_take_no_time_of_its_own(
    operations: list[OperationTerms], flops_per_byte: float
) -> None:
    hidden = Served(operations, machine(flops_per_byte)).run(150)
    assert max(hidden[:5]) > 2 * LEAST and max(hidden[-10:]) < 1.2 * LEAST
    assert min(Served(operations, machine(flops_per_byte, overlaps=False)).run(150)[-10:]) > 2 * LEAST


def test_a_machine_whose_rates_change_is_followed_in_both_directions() -> None:
    served = Served(DENSE, machine(10))
    assert served.run(20)[-1] == LEAST
    served.seconds = machine(4000)
    assert served.run(60)[-1] > 0.92 * MOST
    served.seconds = machine(10)
    assert served.run(150)[-1] < 1.2 * LEAST


def test_steps_are_short_until_predictions_are_reliable_and_after_other_weights_were_loaded() -> None:
    served = Served(MIXTURE, machine(200))
    for step in range(15):
        served.step(0, LEAST)
        assert served.size.tokens == LEAST, step
    assert served.run(5)[-1] > 0.9 * MOST
    served.costs.describe([MIXTURE], [[]])
    served.step(0, LEAST)
    assert served.size.tokens > 0.9 * MOST
    served.costs.describe([DENSE], [[]])
    served.step(0, LEAST)
    assert served.size.tokens == LEAST


def test_decodes_say_nothing_of_long_steps() -> None:
    served = Served(MIXTURE, machine(200))
    for position in range(100):
        served.step(position, 1)
    assert served.size.tokens == LEAST
    served.step(0, LEAST)
    assert served.size.tokens > 0.9 * MOST


def test_a_size_of_the_operator_is_kept() -> None:
    assert set(Served(DENSE, machine(10), least=None).run(5)) == {MOST}


def test_a_draft_model_that_reads_much_for_each_step_makes_steps_longer() -> None:
    assert Served(DENSE, machine(10)).run()[-1] == LEAST
    drafter = [OperationTerms("linear", weight_bytes=100_000_000_000, row_flops=1e6)]
    assert min(Served(DENSE, machine(10), drafter).run()[-10:]) > 1.5 * LEAST


def test_the_time_of_attention_does_not_count_for_longer_steps() -> None:
    """All tokens before are read however a prompt is divided, although the first tokens of a prompt are cheap."""
    heavy = [*DENSE[:1], OperationTerms("attention", position_bytes=65_536, pair_flops=3_000_000)]
    assert min(Served(heavy, machine(2000, overlaps=False)).run()[-10:]) > 1.5 * LEAST


def test_the_least_tokens_are_rounded_to_whole_pages_and_are_at_most_those_of_a_step() -> None:
    served = Served(DENSE, machine(10), least=600)
    assert set(served.run()[2:]) == {608}
    assert set(Served(DENSE, machine(2000), least=MOST).run(5)) == {MOST}
