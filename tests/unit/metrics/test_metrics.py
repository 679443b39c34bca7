import math

import pytest
from numaserve.server.metrics.labels import FINISH_REASONS, REFUSALS, STAGES
from numaserve.server.metrics.metrics import Metrics
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

NAME = 'a"b\\c\nd/é'  # all that has to be escaped in the text format


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"model_name": NAME, **labels})


def rendered(metrics: Metrics) -> dict[str, Metric]:
    """Families by name, as a scraper reads them."""
    return {family.name: family for family in text_string_to_metric_families(metrics.render()[0].decode())}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(NAME)


def test_every_name_of_the_contract_is_there(metrics: Metrics) -> None:
    assert rendered(metrics).keys() >= {
        "numaserve_time_to_first_token_seconds",
        "numaserve_inter_token_latency_seconds",
        "numaserve_e2e_request_latency_seconds",
        "numaserve_queue_time_seconds",
        "numaserve_prefill_time_seconds",
        "numaserve_decode_time_seconds",
        "numaserve_request_prompt_tokens",
        "numaserve_request_generation_tokens",
        "numaserve_prompt_tokens",
        "numaserve_generation_tokens",
        "numaserve_prefix_cache_queries_tokens",
        "numaserve_prefix_cache_hits_tokens",
        "numaserve_kv_pages",
        "numaserve_kv_usage_ratio",
        "numaserve_requests",
        "numaserve_retractions",
        "numaserve_request_outcomes",
        "numaserve_nan_logits",
        "numaserve_step_seconds",
        "numaserve_step_stage_seconds",
        "numaserve_step_tokens",
        "numaserve_worker_up",
        "numaserve_worker_misplaced_pages",
        "numaserve_worker_rss_bytes",
        "numaserve_info",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info",
        "process_resident_memory_bytes",
        "process_cpu_seconds",
        "process_open_fds",
    }


def test_every_series_but_the_process_s_names_the_model(metrics: Metrics) -> None:
    metrics.worker(0, up=True, rss_bytes=1, misplaced_pages=0, state_bytes=0)
    for family in rendered(metrics).values():
        for sample in family.samples:
            expected = None if family.name.startswith("process_") else NAME
            assert sample.labels.get("model_name") == expected, sample


def test_no_series_tells_when_it_began(metrics: Metrics) -> None:
    metrics.inter_token(0.1)
    assert "_created" not in metrics.render()[0].decode()


@pytest.mark.parametrize("name", ["time_to_first_token", "e2e_request_latency", "queue_time", "prefill_time"])
def test_what_a_long_prompt_takes_has_buckets_up_to_two_hours(metrics: Metrics, name: str) -> None:
    samples = rendered(metrics)[f"numaserve_{name}_seconds"].samples
    bounds = [float(sample.labels["le"]) for sample in samples if sample.name.endswith("_bucket")]
    assert bounds[-2:] == [7200.0, math.inf]
    assert bounds == sorted(bounds)


def test_counters_end_in_total(metrics: Metrics) -> None:
    metrics.request_scheduled(queue_seconds=0.5, prompt_tokens=7)
    metrics.prefix_cache(queried_tokens=7, hit_tokens=4)
    metrics.retracted(2)
    metrics.first_token(since_admitted=0.2, since_scheduled=0.1)
    metrics.inter_token(0.01)
    assert value(metrics, "numaserve_prompt_tokens_total") == 7
    assert value(metrics, "numaserve_generation_tokens_total") == 2
    assert value(metrics, "numaserve_prefix_cache_queries_tokens_total") == 7
    assert value(metrics, "numaserve_prefix_cache_hits_tokens_total") == 4
    assert value(metrics, "numaserve_retractions_total") == 2
    assert value(metrics, "numaserve_queue_time_seconds_sum") == 0.5
    assert value(metrics, "numaserve_request_prompt_tokens_sum") == 7
    assert value(metrics, "numaserve_time_to_first_token_seconds_sum") == 0.2
    assert value(metrics, "numaserve_prefill_time_seconds_sum") == 0.1
    assert value(metrics, "numaserve_inter_token_latency_seconds_sum") == 0.01


@pytest.mark.parametrize("reason", [*FINISH_REASONS, *REFUSALS])
def test_every_outcome_starts_at_zero(metrics: Metrics, reason: str) -> None:
    assert value(metrics, "numaserve_request_outcomes_total", reason=reason) == 0


def test_an_end_counts_its_reason_its_time_and_its_output(metrics: Metrics) -> None:
    metrics.request_finished("stop", e2e_seconds=2.0)
    metrics.output_finished(tokens=5, decode_seconds=1.5)
    metrics.request_refused("queue_full")
    assert value(metrics, "numaserve_request_outcomes_total", reason="stop") == 1
    assert value(metrics, "numaserve_request_outcomes_total", reason="queue_full") == 1
    assert value(metrics, "numaserve_e2e_request_latency_seconds_count") == 1
    assert value(metrics, "numaserve_request_generation_tokens_sum") == 5
    assert value(metrics, "numaserve_decode_time_seconds_sum") == 1.5


def test_a_step_counts_its_phase_its_tokens_and_the_stages_that_are_known(metrics: Metrics) -> None:
    metrics.step("decode", 0.02, {"native": 0.018, "send": 0.001}, tokens=9)
    assert value(metrics, "numaserve_step_seconds_sum", phase="decode") == 0.02
    assert value(metrics, "numaserve_step_tokens_sum") == 9
    counts = {stage: value(metrics, "numaserve_step_stage_seconds_count", stage=stage) for stage in STAGES}
    assert counts == {**dict.fromkeys(STAGES, 0), "native": 1, "send": 1}


def test_gauges_hold_the_last_value(metrics: Metrics) -> None:
    metrics.pages(free=1, cached=2, active=3)
    metrics.requests(waiting=4, running=5)
    metrics.worker(1, up=True, rss_bytes=6, misplaced_pages=7, state_bytes=8)
    metrics.worker(1, up=False)
    assert [value(metrics, "numaserve_kv_pages", state=s) for s in ("free", "cached", "active")] == [1, 2, 3]
    assert value(metrics, "numaserve_kv_usage_ratio") == 0.5
    assert [value(metrics, "numaserve_requests", state=s) for s in ("waiting", "running")] == [4, 5]
    assert value(metrics, "numaserve_worker_up", rank="1") == 0
    assert value(metrics, "numaserve_worker_rss_bytes", rank="1") == 6
    assert value(metrics, "numaserve_worker_misplaced_pages", rank="1") == 7
    assert value(metrics, "numaserve_worker_state_bytes", rank="1") == 8


def test_gateways_find_queue_and_cache_under_the_names_they_know(metrics: Metrics) -> None:
    metrics.pages(free=1, cached=2, active=1)
    metrics.requests(waiting=4, running=5)
    metrics.describe_cache(page_size=32, num_pages=4, dtype="bf16", prefix_cache=True)
    assert value(metrics, "vllm:num_requests_waiting", engine="0") == 4
    assert value(metrics, "vllm:num_requests_running", engine="0") == 5
    assert value(metrics, "vllm:kv_cache_usage_perc", engine="0") == 0.25
    (config,) = rendered(metrics)["vllm:cache_config_info"].samples
    assert (config.labels["block_size"], config.labels["num_gpu_blocks"]) == ("32", "4")
    assert (config.labels["cache_dtype"], config.labels["enable_prefix_caching"]) == ("bf16", "True")


def test_the_description_is_the_last_one(metrics: Metrics) -> None:
    metrics.describe(version="1", model="m", isa="amx", tp=2)
    metrics.describe(version="1", model="m", isa="avx512", tp=2)
    assert value(metrics, "numaserve_info", version="1", model="m", isa="avx512", tp="2") == 1
    assert len(rendered(metrics)["numaserve_info"].samples) == 1


def test_gauges_are_set_when_they_are_read(metrics: Metrics) -> None:
    metrics.before_scrape(lambda: metrics.requests(waiting=3, running=0))
    (sample,) = rendered(metrics)["vllm:num_requests_waiting"].samples
    assert sample.value == 3


def test_two_servers_in_one_process_do_not_share(metrics: Metrics) -> None:
    metrics.inter_token(0.1)
    assert value(Metrics(NAME), "numaserve_generation_tokens_total") == 0


def test_snapshots_are_shown_where_there_are_some(metrics: Metrics) -> None:
    assert "numaserve_snapshots" not in rendered(metrics)
    metrics.snapshots(free=3, cached=2, active=1)
    metrics.anchors(hits=4, unanchored_tokens=5)
    states = [value(metrics, "numaserve_snapshots", state=state) for state in ("free", "cached", "active")]
    assert states == [3, 2, 1]
    assert value(metrics, "numaserve_anchor_hits_total") == 4
    assert value(metrics, "numaserve_unanchored_tokens_total") == 5


def test_tiles_of_images_are_counted_where_the_model_reads_some(metrics: Metrics) -> None:
    assert "numaserve_image_tiles" not in rendered(metrics)
    metrics.images(found=2, computed=3, tower_seconds=1.5)
    assert value(metrics, "numaserve_image_tiles_total", features="found") == 2
    assert value(metrics, "numaserve_image_tiles_total", features="computed") == 3
    assert value(metrics, "numaserve_vision_tower_seconds_total") == 1.5


def test_series_of_an_adapter_last_until_it_is_unloaded(metrics: Metrics) -> None:
    assert "numaserve_lora_adapters" not in rendered(metrics)
    metrics.adapters(["law", "sql"], places=4)
    assert value(metrics, "numaserve_lora_adapters") == 2
    assert value(metrics, "numaserve_lora_places") == 4
    assert value(metrics, "numaserve_lora_requests_total", adapter="sql") == 0
    metrics.adapter_finished("sql", prompt_tokens=5, generated=2)
    counted = ("requests", "prompt_tokens", "generation_tokens")
    assert [value(metrics, f"numaserve_lora_{name}_total", adapter="sql") for name in counted] == [1, 5, 2]
    [info] = rendered(metrics)["vllm:lora_requests_info"].samples
    assert info.labels == {"max_lora": "4", "running_lora_adapters": "law,sql", "waiting_lora_adapters": ""}
    metrics.adapters(["law"], places=4)
    metrics.adapter_gone("sql")
    [info] = rendered(metrics)["vllm:lora_requests_info"].samples
    assert info.labels["running_lora_adapters"] == "law"
    assert [value(metrics, f"numaserve_lora_{name}_total", adapter="sql") for name in counted] == [None] * 3
    assert value(metrics, "numaserve_lora_requests_total", adapter="law") == 0


def test_images_are_counted_by_the_source_of_their_pixels_and_by_error_code(metrics: Metrics) -> None:
    assert "numaserve_image" not in rendered(metrics)
    metrics.image_found()
    metrics.image_decoded(0.25)
    metrics.image_refused("invalid_image")
    metrics.image_refused("context_length_exceeded")
    assert value(metrics, "numaserve_images_total", pixels="found") == 1
    assert value(metrics, "numaserve_images_total", pixels="decoded") == 1
    assert value(metrics, "numaserve_image_decode_seconds_sum") == 0.25
    assert value(metrics, "numaserve_images_refused_total", code="invalid_image") == 1
    assert value(metrics, "numaserve_images_refused_total", code="too_many_images") == 0
