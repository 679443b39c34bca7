"""The times that the scheduler learns from results."""

import pytest
from numaserve.server.costs.cost_table import NO_TERMS
from numaserve.server.scheduler.step import InFlight
from numaserve.server.scheduler.step_costs import StepCosts
from numaserve.workers.interface.protocol import OperationTerms, StepPlan, StepResult
from scheduler_simulation import Service
from test_scheduler import service

MODEL = [
    OperationTerms("linear", weight_bytes=80_000_000, row_flops=2.1e8),
    OperationTerms("lm_head", of_logits=True, weight_bytes=28_000_000, row_flops=5.6e7),
    OperationTerms("attention", position_bytes=23_040, pair_flops=69_120),
]


def answer(server: Service, plan: StepPlan | None, **times: int) -> None:
    result = server.workers.run(plan)  # type: ignore[arg-type]
    server.scheduler.apply(StepResult(result.step_id, 0, result.seqs, 0, 0, **times))


def test_the_scheduler_learns_from_results_without_the_wait_for_masks() -> None:
    server = service()
    server.scheduler.costs.describe([MODEL])
    server.add([0] * 10, 3)
    plan = server.scheduler.schedule()
    answer(server, plan, worker_ns=30_000_000, mask_wait_ns=10_000_000)
    work = server.scheduler.costs.begin()
    work.add(0, 10, 1)
    assert server.scheduler.costs.predict(work.terms()) == pytest.approx(0.02)


def test_nothing_is_learnt_of_drafting_from_a_step_that_has_none() -> None:
    costs, terms = StepCosts(draft_model=True), (1.0,) * len(NO_TERMS)
    costs.describe([[OperationTerms("linear", row_flops=1.0)]], [[OperationTerms("linear", row_flops=1.0)]])
    for step in range(20):
        result = StepResult(step, 0, [], 0, 0, worker_ns=2000, draft_ns=1000)
        costs.observe(InFlight(step, terms=terms), result)
    assert costs.draft_model is not None
    assert costs.served.expected(terms) is not None
    assert costs.draft_model.expected(terms) is None


def test_speculation_is_told_of_the_time_of_a_step_without_drafting_and_the_tower() -> None:
    result = StepResult(1, 0, [], 0, 0, worker_ns=7000, draft_ns=1000, tower_ns=2000)
    assert InFlight(1).report(result, [], predicted=2e-6).ratio == pytest.approx(2.0)
