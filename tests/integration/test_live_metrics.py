"""What /metrics says of a server that works."""

import asyncio

from harness import Options, Server, serving, until
from prometheus_client.parser import text_string_to_metric_families


async def scraped(server: Server, name: str) -> float:
    """The value of a metric that has one series, as a scraper gets it."""
    answer = await server.client.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    (sample,) = families[name].samples
    return sample.value


async def test_requests_that_come_during_a_long_step_are_seen_waiting() -> None:
    options = Options(running=1, step_tokens=1, faults=("--hang-at-step", "1"))
    async with serving(options) as server:
        requests = [asyncio.create_task(server.complete(prompt=[10 + i] * 70, max_tokens=1)) for i in range(4)]
        await until(lambda: server.metric("requests", state="running") == 1)
        await until(lambda: server.metric("requests", state="waiting") == 3)
        assert await scraped(server, "vllm:num_requests_running") == 1
        assert await scraped(server, "vllm:num_requests_waiting") == 3
        assert await scraped(server, "vllm:kv_cache_usage_perc") == 3 / options.pages
        assert server.metric("kv_usage_ratio") == 3 / options.pages
        await server.engine.stop()
        await asyncio.gather(*requests)


async def test_retractions_and_lengths_are_counted() -> None:
    async with serving(Options(pages=6, prefix_cache=False)) as server:
        # One request: of three the first could be done before the others come.
        answer = await server.complete(prompt=[[10 + i] * 30 for i in range(3)], max_tokens=100)
        assert answer.status_code == 200
        assert server.metric("retractions_total") >= 1
        assert server.metric("request_prompt_tokens_sum") == 90  # a retracted one is not counted again
        assert server.metric("request_generation_tokens_sum") == 300
        assert server.metric("prefill_time_seconds_count") == server.metric("decode_time_seconds_count") == 3
        assert server.metric("step_tokens_sum") >= 90 + 300 - 3
