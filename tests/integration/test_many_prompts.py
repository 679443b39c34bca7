"""Requests with more prompts than the queue takes, on an engine over fake workers."""

import asyncio

import pytest
from fake_worker import expected_tokens
from harness import GREEDY, Options, running_engine, tokens_of
from numaserve.server.engine.engine import Engine
from numaserve.server.engine.types import NotReady, QueueFull
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.request import Request

COUNT = 5


def prompts(first: int, count: int, client: Client) -> list[Request]:
    return [
        Request("id", [first + index], GREEDY, COUNT, min_new_tokens=COUNT, client=client) for index in range(count)
    ]


async def run_many(engine: Engine, name: str, first: int, begun: asyncio.Event | None = None) -> None:
    """Run twelve prompts in waves of four, and check every answer."""
    client = Client(name)
    place = engine.place(client)
    try:
        place.expect([1] * 12)
        for wave in range(first, first + 12, 4):
            async with place.turn(None):
                chunks = [chunk async for chunk in place.admit(prompts(wave, 4, client))]
            if begun is not None:
                begun.set()
            for index in range(4):
                own = [chunk for chunk in chunks if chunk.index == index]
                assert tokens_of(own) == expected_tokens([wave + index], GREEDY, COUNT)
    finally:
        place.leave()


async def test_every_request_with_a_place_is_answered_though_all_exceed_the_queue_by_far() -> None:
    async with running_engine(Options(running=2, queued=2)) as engine:
        flood = engine.admit(prompts(100, 4, Client("flood")))
        many = [asyncio.create_task(run_many(engine, f"client {number % 3}", 20 + number)) for number in range(9)]
        await asyncio.sleep(0)
        assert engine.load().waiting >= 8
        with pytest.raises(QueueFull):
            engine.admit(prompts(100, 1, Client("flood")))
        answered = [chunk async for chunk in engine.admit(prompts(100, 1, Client("newcomer")))]
        assert tokens_of(answered) == expected_tokens([100], GREEDY, COUNT)
        assert not all(task.done() for task in many)  # the newcomer did not wait for them
        await asyncio.gather(*many)
        assert len([chunk async for chunk in flood]) >= 4
        info = engine.server_info()
        assert (info["running"], info["waiting"]) == (0, 0)


async def test_a_server_that_drains_finishes_what_has_a_place_and_takes_no_more() -> None:
    async with running_engine(Options(running=2, queued=2, faults=("--step-ms", "2"))) as engine:
        begun = asyncio.Event()
        many = asyncio.create_task(run_many(engine, "client", 20, begun))
        await begun.wait()
        draining = asyncio.create_task(engine.drain(60.0))
        await asyncio.sleep(0)
        with pytest.raises(NotReady, match="draining"):
            engine.place(Client("late"))
        assert await draining
        await many
