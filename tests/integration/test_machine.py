"""GET /machine, from the engine and its workers."""

import asyncio
import os
import signal
from typing import Any

from harness import Options, Server, pids_of, serving, until


async def machine(server: Server) -> dict[str, Any]:
    answer = await server.client.get("/machine")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_the_queue_the_pages_and_the_costs_are_told() -> None:
    async with serving(Options(ranks=2, running=1, faults=["--step-ms", "2"])) as server:
        idle = await machine(server)
        assert (idle["now"]["state"], idle["now"]["running"], idle["now"]["longest_wait_s"]) == ("serving", 0, 0.0)
        assert [worker["rank"] for worker in idle["now"]["workers"]] == [0, 1]
        assert [rank["steps"] for rank in idle["costs"]] == [0, 0]
        working = [asyncio.create_task(server.complete(prompt=[11, 12], max_tokens=100)) for _ in range(2)]
        await until(lambda: server.engine.load().running == 1 and server.engine.load().waiting == 1)
        busy = (await machine(server))["now"]
        assert (busy["running"], busy["waiting"]) == (1, 1)
        assert busy["longest_wait_s"] > 0
        await asyncio.gather(*working)
        done = await machine(server)
        assert (done["now"]["prompt_tokens"], done["now"]["generation_tokens"]) == (4, 200)
        assert done["now"]["prefixes"]["pages"] == done["now"]["pages_cached"] > 0
        assert [rank["steps"] for rank in done["costs"]] == [done["now"]["steps"]] * 2


async def test_a_server_without_workers_can_be_looked_at() -> None:
    async with serving(Options(ranks=1, faults=["--no-profile"])) as server:
        # Its workers never tell their costs: what is known otherwise is told all the same.
        assert (await machine(server))["costs"] == []
        os.kill(pids_of(server.engine)[0], signal.SIGKILL)
        await until(lambda: server.engine.state == "restarting")
        assert (await machine(server))["now"]["state"] == "restarting"
        await until(server.engine.is_ready)
