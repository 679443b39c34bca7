"""What comes out of the engine, over real processes and sockets."""

import pytest
from fake_worker import expected_tokens
from harness import GREEDY, Options, generate, running_engine, tokens_of
from numaserve.server.engine.types import QueueFull
from numaserve.server.scheduler.request import Request


async def test_a_repeated_prompt_says_how_much_was_cached() -> None:
    prompt = [10 + i for i in range(100)]
    async with running_engine(Options()) as engine:
        cold = await generate(engine, prompt, 4)
        warm = await generate(engine, prompt, 4)
    assert (cold[0].cached_tokens, warm[0].cached_tokens) == (0, 96)
    assert tokens_of(cold) == tokens_of(warm)


async def test_sequences_that_the_queue_has_not_all_room_for_are_refused_together() -> None:
    async with running_engine(Options(running=2, queued=2)) as engine:
        with pytest.raises(QueueFull):
            engine.admit([_request([11])] * 5)
        info = engine.server_info()
        assert (info["running"], info["waiting"]) == (0, 0)
        chunks = [chunk async for chunk in engine.admit([_request([11 + i]) for i in range(4)])]
        for index in range(4):
            own = [chunk for chunk in chunks if chunk.index == index]
            assert tokens_of(own) == expected_tokens([11 + index], GREEDY, 50)


async def test_work_that_would_wait_too_long_is_refused_until_what_waits_has_begun() -> None:
    async with running_engine(Options(running=1, queued_s=1e-9, faults=("--terms", "--step-ms", "5"))) as engine:
        await generate(engine, [11], 40)  # the engine learns what steps take
        stream = engine.admit([_request([12]), _request([13])])
        with pytest.raises(QueueFull, match="the predicted work of the waiting requests") as refused:
            engine.admit([_request([14])])
        assert refused.value.retry_after >= 1
        chunks = [chunk async for chunk in stream]
        for index, first in enumerate((12, 13)):
            own = [chunk for chunk in chunks if chunk.index == index]
            assert tokens_of(own) == expected_tokens([first], GREEDY, 50)
        assert tokens_of(await generate(engine, [14], 5)) == expected_tokens([14], GREEDY, 5)


def _request(prompt: list[int], **fields: float) -> Request:
    return Request("id", prompt, GREEDY, 50, **fields)
