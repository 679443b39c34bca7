"""Many clients at once: none is lost, none leaks a page, the rest is told to come back."""

import asyncio
import random
from typing import Any

from fake_worker import expected_tokens
from harness import GREEDY, Options, Server, gather, generate, running_engine, serving, until


async def test_two_hundred_concurrent_requests_all_complete() -> None:
    rng = random.Random(0)
    prompts = [[rng.randrange(10, 1000) for _ in range(rng.randint(1, 80))] for _ in range(200)]
    async with serving(Options(ranks=2, pages=200)) as server:
        answers = await gather(*(server.complete(prompt=prompt, max_tokens=20) for prompt in prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.status_code == 200, answer.text
            body = answer.json()
            assert body["choices"][0]["text"] == _text(prompt, 20)
            assert body["usage"]["completion_tokens"] == 20
        await _settled(server, pages=200)
        assert server.metric("request_outcomes_total", reason="length") == 200
        assert server.metric("time_to_first_token_seconds_count") == 200
        assert server.metric("queue_time_seconds_count") == 200
        assert server.metric("generation_tokens_total") == 4000


async def test_a_full_queue_answers_429_and_loses_none() -> None:
    options = Options(running=4, queued=8, faults=("--step-ms", "10"))
    async with serving(options) as server:
        answers = await gather(*(server.complete(prompt=[10 + i], max_tokens=30) for i in range(60)))
        served = [answer for answer in answers if answer.status_code == 200]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert len(served) + len(refused) == 60
        assert 12 <= len(served) < 60  # what runs and what waits; more when some ended while others came
        assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
        assert all(answer.json()["error"]["code"] == "rate_limit_exceeded" for answer in refused)
        assert server.metric("request_outcomes_total", reason="queue_full") == len(refused)
        assert server.metric("request_outcomes_total", reason="length") == len(served)
        assert (await server.complete(prompt=[10], max_tokens=1)).status_code == 200


async def test_clients_that_disconnect_leave_every_page_free_or_cached() -> None:
    async with serving(Options(faults=("--step-ms", "2"), pages=300)) as server:

        async def leave_early(index: int) -> None:
            body = {"model": "fake", "prompt": [10 + index] * (20 + 7 * index), "max_tokens": 1000, "stream": True}
            async with server.client.stream("POST", "/v1/completions", json=body) as response:
                chunks = response.aiter_text()
                for _ in range(index % 5):
                    await anext(chunks)

        await gather(*(leave_early(index) for index in range(50)))
        await _settled(server, pages=300)
        assert server.metric("request_outcomes_total", reason="abort") == 50
        prompt = [500] * 200
        answer = await server.complete(prompt=prompt, max_tokens=10)
        assert answer.json()["choices"][0]["text"] == _text(prompt, 10)


def test_an_idle_engine_does_not_wake_up() -> None:
    async def scenario() -> None:
        async with running_engine(Options(ranks=2, deadline_s=0.2)) as engine:
            await generate(engine, [11], 5)
            await asyncio.sleep(0.5)  # the watch for progress looks once more after the last step
            selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
            waits = 0

            class Counting:
                def __getattr__(self, name: str) -> Any:
                    return getattr(selector, name)

                def select(self, timeout: float | None = None) -> Any:
                    nonlocal waits
                    waits += 1
                    return selector.select(timeout)

            asyncio.get_running_loop()._selector = Counting()  # type: ignore[attr-defined]
            await asyncio.sleep(0.5)
            asyncio.get_running_loop()._selector = selector  # type: ignore[attr-defined]
            assert waits <= 3  # those of the sleep itself

    asyncio.run(scenario())


def _text(prompt: list[int], count: int) -> str:
    return "".join(f"w{token} " for token in expected_tokens(prompt, GREEDY, count))


async def _settled(server: Server, pages: int) -> None:
    """Nothing runs and no page is lost."""
    await until(lambda: server.metric("requests", state="running") == 0 and server.pages()["active"] == 0)
    assert server.metric("requests", state="waiting") == 0
    assert server.pages()["free"] + server.pages()["cached"] == pages
