"""What comes out of the engine, over real processes and sockets."""

import asyncio
import random
from typing import Any

import pytest
from fake_worker import expected_tokens
from harness import GREEDY, Options, gather, generate, run, running_engine, tokens_of
from numaserve.server.engine.types import QueueFull, RequestTimedOut, RequestTooLong
from numaserve.server.scheduler.request import Request
from numaserve.workers.interface.protocol import SamplingParams


def _prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    shared = [rng.randrange(10, 1000) for _ in range(100)]
    return [
        shared[: rng.choice((0, 40, 100))] + [rng.randrange(10, 1000) for _ in range(rng.randint(1, 150))]
        for _ in range(count)
    ]


async def _all_outputs(options: Options, prompts: list[list[int]], count: int) -> list[list[int]]:
    async with running_engine(options) as engine:
        return [tokens_of(chunks) for chunks in await gather(*(generate(engine, prompt, count) for prompt in prompts))]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_every_mode_of_the_loop_gives_the_same_tokens(ranks: int, overlap: bool, prefix_cache: bool) -> None:
    prompts = _prompts(40)
    options = Options(ranks=ranks, overlap=overlap, prefix_cache=prefix_cache)
    assert run(_all_outputs(options, prompts, 40)) == [expected_tokens(prompt, GREEDY, 40) for prompt in prompts]


@pytest.mark.parametrize("overlap", [False, True])
def test_running_out_of_pages_loses_nothing(overlap: bool) -> None:
    prompts = _prompts(24, seed=1)
    options = Options(overlap=overlap, pages=24)
    assert run(_all_outputs(options, prompts, 70)) == [expected_tokens(prompt, GREEDY, 70) for prompt in prompts]


async def test_seeds_give_different_outputs_that_repeat() -> None:
    async with running_engine(Options()) as engine:
        for seed in (1, 2):
            sampling = SamplingParams(temperature=1.0, seed=seed)
            for _ in range(2):
                tokens = tokens_of(await generate(engine, [11, 12], 8, sampling=sampling))
                assert tokens == expected_tokens([11, 12], sampling, 8)


async def test_the_text_of_the_chunks_is_the_text_of_the_tokens() -> None:
    async with running_engine(Options()) as engine:
        chunks = await generate(engine, [11, 12], 20)
    assert "".join(chunk.text for chunk in chunks) == "".join(f"w{token} " for token in tokens_of(chunks))
    assert [chunk.finish_reason for chunk in chunks] == [None] * 19 + ["length"]


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_stop_string_that_spans_tokens_ends_the_text_before_it(overlap: bool) -> None:
    tokens = expected_tokens([11, 12], GREEDY, 30)
    stop = f"{tokens[9]} w{tokens[10]} w"
    async with running_engine(Options(overlap=overlap)) as engine:
        chunks = await generate(engine, [11, 12], 30, stop=("never", stop))
        text = "".join(f"w{token} " for token in tokens)
        assert "".join(chunk.text for chunk in chunks) == text[: text.index(stop)]
        assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("stop", stop)
        # The surplus step that was in flight does no harm to the next request in the same slot.
        assert tokens_of(await generate(engine, [11, 12, 13], 30)) == expected_tokens([11, 12, 13], GREEDY, 30)


async def test_a_stop_token_ends_the_request_and_its_text_is_left_out() -> None:
    tokens = expected_tokens([11, 12], GREEDY, 30)
    stop = tokens[5]
    async with running_engine(Options()) as engine:
        chunks = await generate(engine, [11, 12], 30, stop_token_ids=frozenset({stop}))
        assert tokens_of(chunks) == tokens[:6]
        assert "".join(chunk.text for chunk in chunks) == "".join(f"w{token} " for token in tokens[:5])
        assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("stop", stop)


async def test_nothing_stops_before_the_minimum_of_tokens() -> None:
    prompt = [11, 12]
    tokens = expected_tokens(prompt, GREEDY, 12)
    early: dict[str, Any] = {"stop_token_ids": frozenset({tokens[2]}), "stop": (f"w{tokens[4]} ",)}
    sampling = SamplingParams(temperature=0.0, min_position=len(prompt) + 8, suppress=[tokens[2]])
    async with running_engine(Options()) as engine:
        chunks = await generate(engine, prompt, 12, min_new_tokens=8, sampling=sampling, **early)
    assert len(tokens_of(chunks)) >= 8


async def test_prompt_logprobs_come_once_and_on_the_first_chunk() -> None:
    prompt = [10 + i % 900 for i in range(300)]  # longer than a step
    sampling = SamplingParams(temperature=0.0, logprobs=3)
    async with running_engine(Options()) as engine:
        for _ in range(2):  # the second time the prompt is cached
            chunks = await generate(engine, prompt, 5, sampling=sampling, prompt_logprobs=True)
            assert [each.token for each in chunks[0].prompt_logprobs] == prompt[1:]
            assert not any(chunk.prompt_logprobs for chunk in chunks[1:])
            assert [chunk.logprobs[0].token for chunk in chunks] == tokens_of(chunks)
            assert len(chunks[0].logprobs[0].top_ids) == 3


async def test_a_repeated_prompt_says_how_much_was_cached() -> None:
    prompt = [10 + i for i in range(100)]
    async with running_engine(Options()) as engine:
        cold = await generate(engine, prompt, 4)
        warm = await generate(engine, prompt, 4)
    assert (cold[0].cached_tokens, warm[0].cached_tokens) == (0, 96)
    assert tokens_of(cold) == tokens_of(warm)


async def test_a_prompt_that_could_never_run_is_refused_at_once() -> None:
    async with running_engine(Options(context=64)) as engine:
        with pytest.raises(RequestTooLong, match="64"):
            engine.admit([_request([11] * 64)])


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


async def test_closing_a_stream_before_its_first_chunk_frees_everything() -> None:
    async with running_engine(Options(faults=("--step-ms", "5"))) as engine:
        streams = [engine.admit([_request([11 + i] * 100)]) for i in range(40)]
        await streams[0].__anext__()
        for stream in streams:
            await stream.aclose()
            await stream.aclose()
        info = engine.server_info()
        assert (info["running"], info["waiting"], info["pages_active"]) == (0, 0, 0)
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(streams[1].__anext__(), 1)
        assert tokens_of(await generate(engine, [11] * 100, 5)) == expected_tokens([11] * 100, GREEDY, 5)


async def test_requests_whose_time_passes_end_running_or_queued_and_others_go_on() -> None:
    async with running_engine(Options(running=1, faults=("--step-ms", "20"))) as engine:
        late = [engine.admit([_request([11 + i], timeout_s=0.3)]) for i in range(2)]
        patient = engine.admit([_request([20])])
        for stream in late:
            with pytest.raises(RequestTimedOut):
                async for _ in stream:
                    pass
            await stream.aclose()
        assert tokens_of([chunk async for chunk in patient]) == expected_tokens([20], GREEDY, 50)


def _request(prompt: list[int], **fields: float) -> Request:
    return Request("id", prompt, GREEDY, 50, **fields)
