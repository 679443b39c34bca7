"""From GET /server_info to the workers and back."""

import asyncio
import os
import signal
from typing import Any

import pytest
from harness import Options, Server, gather, generate, pids_of, running_engine, serving, until
from numaserve.server.engine.types import NotReady


async def profile(server: Server, more: str = "") -> list[dict[str, Any]]:
    answer = await server.client.get(f"/server_info?profile=1{more}")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["profile"])


def steps_of(server: Server) -> int:
    return int(str(server.engine.server_info()["steps"]))


async def test_every_rank_tells_what_its_steps_have_cost() -> None:
    async with serving(Options(ranks=3)) as server:
        assert [rank["steps"] for rank in await profile(server)] == [0, 0, 0]
        await server.complete(prompt=[11, 12], max_tokens=5)
        ranks = await profile(server)
        assert [(rank["rank"], rank["steps"]) for rank in ranks] == [(0, 5), (1, 5), (2, 5)]
        assert ranks[2]["operations"][0]["ns"] == 5 * 30_000
        assert ranks[2]["ceilings"] is None


async def test_profiles_are_told_while_requests_run_and_disturb_none() -> None:
    async with serving(Options(ranks=2, faults=["--step-ms", "2"])) as server:
        working = asyncio.create_task(server.complete(prompt=[11, 12], max_tokens=600))
        await until(lambda: steps_of(server) > 0)
        many = await gather(*(profile(server) for _ in range(30)))
        assert not working.done()
        text = (await working).json()["choices"][0]["text"]
        assert text == (await server.complete(prompt=[11, 12], max_tokens=600)).json()["choices"][0]["text"]
        assert {len(ranks) for ranks in many} == {2}


async def test_ceilings_are_measured_by_an_idle_server_only() -> None:
    async with serving(Options(ranks=2, faults=["--step-ms", "2"])) as server:
        ranks = await profile(server, "&ceilings=1")
        assert [rank["ceilings"]["read_bytes_s"] for rank in ranks] == [1e9, 1e9]
        working = asyncio.create_task(server.complete(prompt=[11, 12], max_tokens=200))
        await until(lambda: steps_of(server) > 0)
        assert (await server.client.get("/server_info?profile=1&ceilings=1")).status_code == 409
        assert (await working).status_code == 200


async def test_bandwidth_that_was_not_measured_is_null() -> None:
    async with serving(Options(faults=["--small-weights"])) as server:
        (rank,) = await profile(server, "&ceilings=1")
        assert rank["ceilings"] == {"isa": "fake", "threads": 1, "read_bytes_s": None, "flops_s": {"bf16": 1e9}}


async def test_a_worker_that_dies_ends_the_wait_for_its_profile() -> None:
    async with running_engine(Options(ranks=2, faults=["--no-profile"])) as engine:
        asked = asyncio.create_task(engine.profile())
        await asyncio.sleep(0)
        os.kill(pids_of(engine)[1], signal.SIGKILL)
        with pytest.raises(NotReady, match="worker 1"):
            await asked
        with pytest.raises(NotReady, match="restarting"):
            await engine.profile()
        await until(engine.is_ready)
        assert len(await generate(engine, [11], 3)) == 3
