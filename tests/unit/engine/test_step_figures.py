import pytest
from numaserve.server.engine.admission.throughput import Throughput
from numaserve.server.engine.steps.times import StepTimes, step_kind, tokens_of
from numaserve.server.metrics.metrics import Metrics
from numaserve.workers.interface.protocol import SamplingParams, SeqPlan, SlotInit, StepPlan, StepResult

PREFILL = SeqPlan(0, 0, [1, 2, 3], init=SlotInit(SamplingParams()))
DECODE = SeqPlan(1, 7, [4])
AHEAD = SeqPlan(2, 9, [], from_previous=True)


@pytest.mark.parametrize(
    ("seqs", "kind"), [([PREFILL], "prefill"), ([DECODE, AHEAD], "decode"), ([PREFILL, AHEAD], "mixed")]
)
def test_the_kind_of_a_step_is_what_its_plan_computes(seqs: list[SeqPlan], kind: str) -> None:
    assert step_kind(StepPlan(0, seqs)) == kind


def test_a_token_with_draft_tokens_behind_it_is_decoded() -> None:
    assert step_kind(StepPlan(0, [SeqPlan(1, 7, [4, 5, 6]), AHEAD], drafts=[2, 0])) == "decode"
    assert step_kind(StepPlan(0, [PREFILL, SeqPlan(1, 7, [4, 5, 6])], drafts=[0, 2])) == "mixed"


def test_the_stages_of_a_step_add_up_to_its_time() -> None:
    metrics = Metrics("m")
    result = StepResult(0, 0, [], native_ns=8_000_000, all_reduce_ns=1_000_000, worker_ns=9_000_000)
    times = StepTimes(scheduling=1.0, scheduled=1.002, sent=1.003)
    times.record(metrics, StepPlan(0, [DECODE]), result, begun=1.003, answered=1.013, processed=1.017)

    def stage(name: str) -> float | None:
        return metrics.registry.get_sample_value("numaserve_step_stage_seconds_sum", {"model_name": "m", "stage": name})

    values = {name: stage(name) for name in ("schedule", "send", "native", "all_reduce", "receive", "detokenize")}
    assert values == pytest.approx(
        {"schedule": 0.002, "send": 0.001, "native": 0.008, "all_reduce": 0.001, "receive": 0.001, "detokenize": 0.004}
    )
    labels = {"model_name": "m", "phase": "decode"}
    assert metrics.registry.get_sample_value("numaserve_step_seconds_sum", labels) == pytest.approx(0.01)


def test_the_tokens_of_a_step_are_those_of_prompts_and_one_for_each_sequence_in_decode() -> None:
    assert tokens_of(StepPlan(0, [PREFILL, DECODE, AHEAD])) == 5


def test_retry_after_follows_the_pace_and_stays_in_bounds() -> None:
    throughput = Throughput()
    assert throughput.retry_after(waiting=1000, now=0.0) == 1
    for second in range(10):
        throughput.ended(float(second), tokens=100)
    assert throughput.retry_after(waiting=2000, now=10.0) == 10
    assert throughput.retry_after(waiting=0, now=10.0) == 1
    assert throughput.retry_after(waiting=1_000_000, now=10.0) == 60


def test_requests_of_which_nothing_was_computed_say_nothing_of_the_pace() -> None:
    throughput = Throughput()
    for second in range(10):
        throughput.ended(float(second), tokens=0)
    assert throughput.retry_after(waiting=2000, now=10.0) == 1
