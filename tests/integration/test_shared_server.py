"""Clients that share an engine, over real processes and sockets."""

import asyncio

import pytest
from fake_worker import expected_tokens
from harness import GREEDY, Options, generate, running_engine, tokens_of
from numaserve.server.scheduler.client import Client

FLOOD, SMALL = Client("flood"), Client("small")
SEQUENCES, OUTPUT = 24, 120


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_small_client_is_served_beside_a_flood_and_nobody_loses_a_token(overlap: bool) -> None:
    """Both slots are the flood's, and more wait; pages are scarce, too."""
    options = Options(running=2, pages=12, overlap=overlap)
    async with running_engine(options) as engine:
        flood = [
            asyncio.create_task(generate(engine, [11 + index] * 40, OUTPUT, client=FLOOD)) for index in range(SEQUENCES)
        ]
        served = 0
        while engine.server_info()["running"] != 2:
            await asyncio.sleep(0)
        for index in range(6):
            small = await generate(engine, [500 + index] * 40, 5, client=SMALL)
            assert tokens_of(small) == expected_tokens([500 + index] * 40, GREEDY, 5)
            served += 1
            if any(task.done() for task in flood[4:]):
                break
        assert served == 6, "a small request waited for many of the flood"
        for index, task in enumerate(flood):
            assert tokens_of(await task) == expected_tokens([11 + index] * 40, GREEDY, OUTPUT)
        retractions = engine.server_info()["retractions"]
        assert isinstance(retractions, int) and retractions >= 1
