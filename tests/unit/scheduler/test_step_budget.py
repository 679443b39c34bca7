"""Prompts beside output tokens take no longer than these may wait."""

import pytest
from numaserve.server.costs.cost_model import CostModel
from numaserve.server.scheduler.policy import StepBudget
from numaserve.server.scheduler.sequence import (
    DEFAULT_SPLIT_COST,
    DEFAULT_TARGET_ITL_S,
    DEFAULT_TARGET_STEPS,
    ECONOMICAL_STEP_S,
)
from numaserve.workers.interface.protocol import OperationTerms, StepPlan
from scheduler_simulation import Request, Service, small_service, step_ns

from tests.support.plan_limits import plan_limits
from tests.support.sequences import planned

PAGE = 4


def service(target_itl_s: float | None, **limits: int) -> Service:
    sizes = {"num_pages": 600, "context_length": 1000, "max_slots": 8, "max_step_tokens": 256, "max_logit_rows": 256}
    return small_service(target_itl_s=target_itl_s, **{**sizes, **limits})


def step(server: Service) -> StepPlan:
    plan = planned(server)
    server.receive()
    return plan


def learnt(server: Service, streams: int = 2) -> Service:
    """The same server with running streams, which has seen steps of all kinds."""
    for length in (300, 40, 7):
        server.add([length % 3] * length, 20)
        server.drain()
    for stream in range(streams):
        server.add([stream] * 5, 900)
    for _ in range(30):
        step(server)
    return server


def prefill(plan: StepPlan) -> list[int]:
    return [len(seq.tokens) for seq in plan.seqs if len(seq.tokens) > 1]


def test_a_step_with_decodes_stays_below_the_target_and_its_chunks_get_shorter_as_tokens_get_dearer() -> None:
    server = learnt(service(0.02))
    server.add([2] * 400, 5)
    plans = [step(server) for _ in range(200)]
    cut = [plan for plan in plans if prefill(plan)]
    chunks = [sum(prefill(plan)) for plan in cut]
    assert sum(chunks) == 400
    assert all(step_ns(plan) < 0.02e9 * 1.05 for plan in cut)
    assert min(step_ns(plan) for plan in cut[:-1]) > 0.02e9 * 0.5
    assert chunks[-2] < chunks[0] / 2
    assert all(chunk % PAGE == 0 for chunk in chunks[:-1])


def test_without_decodes_a_chunk_is_all_that_a_step_may_have() -> None:
    server = service(0.002)
    for length in (300, 40):
        server.add([1] * length, 3)
        server.drain()
    server.add([2] * 700, 5)
    assert [prefill(step(server)) for _ in range(3)] == [[256], [256], [188]]


def test_a_target_that_cannot_be_met_leaves_a_prompt_one_page_a_step() -> None:
    server = learnt(service(1e-6))
    server.add([2] * 30, 5)
    assert [prefill(step(server)) for _ in range(8)] == [[PAGE]] * 7 + [[2]]


def test_a_page_that_takes_too_long_is_cut_inside() -> None:
    """Late in a long prompt a page takes longer than a step may; the decodes have half of the time at most."""
    costs = CostModel()
    costs.describe([[OperationTerms("linear", row_flops=2e8, weight_bytes=100_000_000)]])
    terms = costs.begin().terms(0, 100)
    costs.observe(terms, costs.predict(terms))

    def chunk(factor: float, *earlier: int) -> tuple[int, float, float]:
        """The chunk after `earlier` prompts, the time of its step and the time of the decodes, where a step may take
        `factor` times that."""
        work = costs.begin()
        work.add(0, 1, 1)
        alone = costs.predict(work.terms())
        config = plan_limits(num_pages=1000, context_length=4000, page_size=32, target_itl_s=factor * alone)
        budget = StepBudget(config, costs, work)
        budget.take(Request(0, [0], 5).sequence())
        for seed, prompt in enumerate(earlier, 2):
            work.add(0, budget.take(Request(seed, [seed] * prompt, 5).sequence()).length, 1)
        length = budget.take(Request(1, [1] * 3000, 5).sequence()).length
        return length, costs.predict(work.terms(0, length, 1)), alone

    length, seconds, alone = chunk(2.5)
    assert length in {8, 16, 24} and 2 * alone <= seconds <= 2.5 * alone
    length, seconds, alone = chunk(3.0, 3)
    assert length == 8 and 2 * alone <= seconds <= 3 * alone  # a short prompt before it is no decode
    assert chunk(50.0)[0] % 32 == 0
    assert chunk(0.9)[0] == 32  # a target that the decodes alone exceed


def test_by_default_a_step_may_take_a_tenth_of_a_second_or_three_of_its_decodes() -> None:
    server = learnt(service(None, max_step_tokens=1000, context_length=3000, num_pages=2000))
    server.add([2] * 2500, 5)
    seconds = [step_ns(plan) / 1e9 for plan in (step(server) for _ in range(40)) if prefill(plan)]
    assert max(seconds) < DEFAULT_TARGET_ITL_S * 1.05 and sorted(seconds)[-2] > DEFAULT_TARGET_ITL_S * 0.8


def test_decodes_that_take_long_themselves_let_prompts_take_longer_too() -> None:
    server = service(None, max_slots=16, num_pages=4000, max_step_tokens=1000)
    for stream in range(15):
        server.add([stream % 3] * 900, 90)
    while any(seq.num_remaining > 1 for seq in server.scheduler.running) or server.scheduler.waiting:
        step(server)
    alone = step_ns(step(server)) / 1e9
    assert DEFAULT_TARGET_STEPS * alone > DEFAULT_TARGET_ITL_S
    server.add([2] * 900, 5, salt="other")
    seconds = step_ns(step(server)) / 1e9
    assert DEFAULT_TARGET_STEPS * alone * 0.8 < seconds < DEFAULT_TARGET_STEPS * alone * 1.05


def chunk_next_to_streams(operation: OperationTerms, streams: int, **limits: float) -> tuple[int, CostModel]:
    """The length of the first chunk of a long prompt next to streams, and the costs that it was planned with."""
    costs = CostModel()
    costs.describe([[operation]])
    terms = costs.begin().terms(0, 100)
    costs.observe(terms, costs.predict(terms))
    work = costs.begin()
    config = plan_limits(num_pages=1000, context_length=4000, page_size=PAGE, **limits)  # type: ignore[arg-type]
    budget = StepBudget(config, costs, work)
    for seed in range(streams):
        budget.take(Request(seed, [seed], 5).sequence())
        work.add(0, 1, 1)
    return budget.take(Request(streams, [1] * 3000, 5).sequence()).length, costs


MIXTURE = OperationTerms("moe_gate_up", row_flops=2e8, expert_bytes=4_000_000_000, num_experts=256, top_k=8)


def test_a_chunk_of_a_mixture_is_long_enough_for_the_experts_that_it_reads() -> None:
    streams, longest = 2, 510
    chunk, costs = chunk_next_to_streams(MIXTURE, streams)
    work = costs.begin()
    work.add(0, 1, 1, times=streams)
    alone = costs.predict(work.terms())

    def of_token(length: int) -> float:
        return (costs.predict(work.terms(0, length, 1)) - alone) / length

    most = DEFAULT_SPLIT_COST * of_token(longest // PAGE * PAGE)
    assert of_token(chunk) <= most < of_token(chunk - PAGE)
    assert costs.predict(work.terms(0, chunk, 1)) > max(DEFAULT_TARGET_ITL_S, DEFAULT_TARGET_STEPS * alone)


def test_streams_wait_no_longer_because_there_is_memory_for_longer_steps() -> None:
    chunk, _ = chunk_next_to_streams(MIXTURE, 2)
    longer, _ = chunk_next_to_streams(MIXTURE, 2, max_step_tokens=2048, least_step_tokens=512)
    of_operator, _ = chunk_next_to_streams(MIXTURE, 2, max_step_tokens=2048)
    assert longer == chunk < of_operator


def test_a_target_is_kept_for_a_mixture_too() -> None:
    chunk, costs = chunk_next_to_streams(MIXTURE, 2, target_itl_s=0.3)
    assert costs.predict(costs.begin().terms(0, 2 + chunk, 1)) <= 0.3
    assert chunk < chunk_next_to_streams(MIXTURE, 2)[0]


def prompts_in_a_step(seconds: float, *lengths: int, least: int | None = 64) -> tuple[list[int], CostModel]:
    """The chunks of prompts in a step of at most 1000 tokens, where the costs of 1000 tokens are `seconds`."""
    costs = CostModel()
    costs.describe([[OperationTerms("linear", row_flops=2e7), OperationTerms("attention", pair_flops=20_000)]])
    costs.observe(costs.begin().terms(0, 1000, 1), seconds)
    config = plan_limits(1000, 4000, max_step_tokens=1000, least_step_tokens=least, page_size=PAGE)
    work = costs.begin()
    budget = StepBudget(config, costs, work, tokens=1000)
    chunks = []
    for seed, length in enumerate(lengths):
        if budget.is_open:
            chunks.append(budget.take(Request(seed, [1] * length, 5).sequence()).length)
            work.add(0, chunks[-1], 1)
    return chunks, costs


@pytest.mark.parametrize("lengths", [(3000, 3000), (100, 200, 3000, 3000)])
def test_a_step_is_lengthened_for_no_longer_than_newcomers_may_wait(lengths: tuple[int, ...]) -> None:
    chunks, costs = prompts_in_a_step(4.0, *lengths)
    assert len(chunks) == len(lengths) - 1 and chunks[:-1] == list(lengths[:-2])
    times = []
    for last in (chunks[-1], chunks[-1] + PAGE):
        work = costs.begin()
        for length in (*chunks[:-1], last):
            work.add(0, length, 1)
        times.append(costs.predict(work.terms()))
    assert times[0] <= ECONOMICAL_STEP_S < times[1]


def test_the_least_tokens_of_a_step_are_computed_however_long_they_take() -> None:
    assert prompts_in_a_step(4000.0, 3000)[0] == [64]
    assert prompts_in_a_step(4000.0, 10, 7, 3000)[0] == [10, 7, 47]


def test_a_step_that_takes_little_time_or_has_the_size_of_the_operator_is_not_cut() -> None:
    assert prompts_in_a_step(1.9, 3000)[0] == [1000]
    assert prompts_in_a_step(4.0, 3000, least=None)[0] == [1000]
    assert prompts_in_a_step(4.0, 400, 3000)[0][0] == 400


def test_late_in_a_prompt_steps_are_shorter_and_next_to_streams_too() -> None:
    costs = prompts_in_a_step(4.0)[1]
    config = plan_limits(1000, 4000, max_step_tokens=1000, least_step_tokens=64, page_size=PAGE, target_itl_s=60.0)
    for streams in (0, 1):
        prompt, chunks = Request(9, [1] * 3000, 5).sequence(), list[int]()
        prompt.position.max_tokens = 3000
        while len(prompt.tokens) > prompt.position.computed:
            budget = StepBudget(config, costs, work := costs.begin(), tokens=1000)
            for seed in range(streams):
                budget.take(Request(seed, [seed], 5).sequence())
                work.add(0, 1, 1)
            chunks.append(budget.take(prompt).length)
            work.add(prompt.position.computed, chunks[-1], 1)
            assert costs.predict(work.terms()) <= ECONOMICAL_STEP_S
            prompt.position.planned(chunks[-1], 0, 0, False, 0)
        assert sum(chunks) == 3000 and chunks[:-1] == sorted(chunks[:-1], reverse=True)
        assert chunks[0] > 2 * chunks[-2] > 2 * 64


def test_nobody_is_admitted_behind_a_prompt_that_was_cut() -> None:
    server = learnt(service(0.004))
    server.add([2] * 200, 5)
    server.add([1] * 3, 5)
    first = step(server)
    assert len(prefill(first)) == 1
    assert server.scheduler.stats().waiting == 1
    server.drain()
    assert all(request.ends == ["length"] for request in server.requests.values())


@pytest.mark.parametrize("target", [1e-9, 0.002, 0.02, None])
def test_everybody_comes_to_an_end_whatever_the_target(target: float | None) -> None:
    server = service(target, num_pages=60, context_length=200)
    requests: list[Request] = []
    for index in range(25):
        requests.append(server.add([index % 3] * (1 + 37 * index % 150), 1 + index % 30))
        if index % 3:
            step(server)
    server.drain()
    assert all(request.ends == ["length"] for request in requests)


def test_streams_whose_workers_died_catch_up_in_whole_steps_and_others_still_in_time() -> None:
    server = learnt(service(0.02), streams=1)
    streams = [server.add([number % 3, *[number // 3] * 149], 900) for number in range(1, 7)]
    while not all(request.received for request in streams):
        step(server)
    server.restart_workers()
    server.add([2] * 400, 5)
    plans = [step(server) for _ in range(200)]
    whole = [plan for plan in plans if sum(max(1, len(seq.tokens)) for seq in plan.seqs) == 256]
    assert plans[: len(whole)] == whole
    assert sum(sum(prefill(plan)) for plan in whole) > 6 * 150
    assert all(step_ns(plan) < 0.02e9 * 1.05 for plan in plans[len(whole) + 1 :])
