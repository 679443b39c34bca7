from __future__ import annotations

import pytest
from numaserve.server.metrics.metrics import FINISH_REASONS, REFUSALS, STAGES, Metrics
from prometheus_client.parser import text_string_to_metric_families


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_every_name_of_the_contract_is_there() -> None:
    metrics = Metrics()
    metrics.describe(version="1", model='a"b\nc', isa="amx", tp=2)
    families = {family.name for family in text_string_to_metric_families(metrics.render()[0].decode())}
    assert families >= {
        "numaserve_time_to_first_token_seconds",
        "numaserve_inter_token_latency_seconds",
        "numaserve_e2e_request_latency_seconds",
        "numaserve_queue_time_seconds",
        "numaserve_prompt_tokens",
        "numaserve_generation_tokens",
        "numaserve_prefix_cache_queries_tokens",
        "numaserve_prefix_cache_hits_tokens",
        "numaserve_kv_pages",
        "numaserve_requests",
        "numaserve_request_outcomes",
        "numaserve_step_seconds",
        "numaserve_step_stage_seconds",
        "numaserve_worker_up",
        "numaserve_worker_misplaced_pages",
        "numaserve_worker_rss_bytes",
        "numaserve_info",
    }
    assert value(metrics, "numaserve_info", version="1", model='a"b\nc', isa="amx", tp="2") == 1


def test_counters_end_in_total() -> None:
    metrics = Metrics()
    metrics.request_scheduled(queue_seconds=0.5, prompt_tokens=7)
    metrics.prefix_cache(queried_tokens=7, hit_tokens=4)
    metrics.first_token(0.2)
    metrics.inter_token(0.01)
    assert value(metrics, "numaserve_prompt_tokens_total") == 7
    assert value(metrics, "numaserve_generation_tokens_total") == 2
    assert value(metrics, "numaserve_prefix_cache_queries_tokens_total") == 7
    assert value(metrics, "numaserve_prefix_cache_hits_tokens_total") == 4
    assert value(metrics, "numaserve_queue_time_seconds_sum") == 0.5
    assert value(metrics, "numaserve_time_to_first_token_seconds_sum") == 0.2
    assert value(metrics, "numaserve_inter_token_latency_seconds_sum") == 0.01


@pytest.mark.parametrize("reason", [*FINISH_REASONS, *REFUSALS])
def test_every_outcome_starts_at_zero(reason: str) -> None:
    assert value(Metrics(), "numaserve_request_outcomes_total", reason=reason) == 0


def test_an_end_counts_its_reason_and_its_time() -> None:
    metrics = Metrics()
    metrics.request_finished("stop", e2e_seconds=2.0)
    metrics.request_refused("queue_full")
    assert value(metrics, "numaserve_request_outcomes_total", reason="stop") == 1
    assert value(metrics, "numaserve_request_outcomes_total", reason="queue_full") == 1
    assert value(metrics, "numaserve_e2e_request_latency_seconds_count") == 1


def test_a_step_counts_its_phase_and_the_stages_that_are_known() -> None:
    metrics = Metrics()
    metrics.step("decode", 0.02, {"native": 0.018, "send": 0.001})
    assert value(metrics, "numaserve_step_seconds_sum", phase="decode") == 0.02
    counts = {stage: value(metrics, "numaserve_step_stage_seconds_count", stage=stage) for stage in STAGES}
    assert counts == {**dict.fromkeys(STAGES, 0), "native": 1, "send": 1}


def test_gauges_hold_the_last_value() -> None:
    metrics = Metrics()
    metrics.pages(free=1, cached=2, active=3)
    metrics.requests(waiting=4, running=5)
    metrics.worker(1, up=True, rss_bytes=6, misplaced_pages=7)
    metrics.worker(1, up=False)
    assert [value(metrics, "numaserve_kv_pages", state=s) for s in ("free", "cached", "active")] == [1, 2, 3]
    assert [value(metrics, "numaserve_requests", state=s) for s in ("waiting", "running")] == [4, 5]
    assert value(metrics, "numaserve_worker_up", rank="1") == 0
    assert value(metrics, "numaserve_worker_rss_bytes", rank="1") == 6
    assert value(metrics, "numaserve_worker_misplaced_pages", rank="1") == 7


def test_two_servers_in_one_process_do_not_share() -> None:
    first, second = Metrics(), Metrics()
    first.first_token(0.1)
    assert value(second, "numaserve_generation_tokens_total") == 0
