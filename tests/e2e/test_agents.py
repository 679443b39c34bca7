"""A model whose stages are on two hosts has the bits of one host, whatever happens to the agent of the second one."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from numaserve.workers.interface.host_links import Address

from tests.support.agents import RunningAgent
from tests.support.chat_model import write_model
from tests.support.real_server import RealServer
from tests.support.relay import Relay

STREAMS = 6
FEW = 16  # tokens, where four ranks share two cores
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
# Addresses of this host that nothing else uses, so that a port that is free at one of them is free at both.
AGENT, RELAY = "127.0.0.3", "127.0.0.4"
OPTIONS = ("--tp", "1", "--context-length", "256", "--threads-per-worker", "1", "--kv-cache-gib", "0.05")


async def _streams(server: RealServer, fault: Callable[[], None] | None = None, tokens: int = 160) -> list[list[Any]]:
    """The tokens and log-probabilities of all streams, of which the last one is constrained; the `fault` comes when all
    have begun."""

    async def ask(client: httpx.AsyncClient, index: int) -> list[Any]:
        body = {"model": server.model, "prompt": f"Once upon {index} times", "max_tokens": tokens, "logprobs": 2}
        more: dict[str, Any] = {"temperature": index % 2, "seed": index, "ignore_eos": True}
        if index == STREAMS - 1:
            more = {
                "temperature": 1,
                "seed": 1,
                "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
            }
        answer = await client.post("/v1/completions", json=body | more)
        assert answer.status_code == 200, answer.text
        found = answer.json()["choices"][0]["logprobs"]
        return [found["tokens"], found["token_logprobs"], found["top_logprobs"]]

    async with server.client() as client:
        asked = [asyncio.ensure_future(ask(client, index)) for index in range(STREAMS)]
        if fault is not None:
            before = server.metrics()["generation_tokens_total"]
            while server.metrics()["generation_tokens_total"] < before + 2 * STREAMS:
                await asyncio.sleep(0.02)
            fault()
        return await asyncio.gather(*asked)


def _restarts(server: RealServer) -> dict[str, float]:
    """The restarts so far, by the reason."""
    found = [(name.split(), count) for name, count in server.metrics().items()]
    return {name[1]: count for name, count in found if name[0] == "worker_restarts_total" and count}


def test_an_agent_changes_no_bit_and_may_be_lost_at_any_time(tmp_path: Path) -> None:
    model = str(write_model(tmp_path))
    with RealServer(*OPTIONS, model=model) as server:
        undisturbed = asyncio.run(_streams(server))
    folder = tmp_path / "agent"
    folder.mkdir()
    with (
        RunningAgent(folder) as agent,
        RealServer(*OPTIONS, "--hosts", str(agent.hosts_file("here", agent.stage)), model=model) as server,
    ):
        assert asyncio.run(_streams(server)) == undisturbed
        info = httpx.get(f"{server.url}/server_info?profile=1", timeout=30).json()
        assert [each.get("host") for each in info["workers"]] == [None, str(agent.address)]
        # The process id of a rank on another host may be that of any process here.
        assert ["cpu_ns" in each for each in info["profile"]] == [True, False]

        def lose_worker() -> None:
            os.kill(server.worker_pids()[1], signal.SIGKILL)

        def lose_own_worker() -> None:
            os.kill(server.worker_pids()[0], signal.SIGKILL)

        def lose_agent() -> None:
            agent.kill()
            agent.start()

        def silence_agent() -> None:
            agent.process.send_signal(signal.SIGSTOP)
            server.until(lambda: not server.is_ready())
            agent.process.send_signal(signal.SIGCONT)

        for fault, restarts in (
            (lose_worker, {"signal": 1}),
            (lose_own_worker, {"signal": 2}),
            (lose_agent, {"signal": 2, "stall": 1}),
            (silence_agent, {"signal": 2, "stall": 2}),
        ):
            assert asyncio.run(_streams(server, fault)) == undisturbed
            server.until(lambda expected=restarts: server.is_ready() and _restarts(server) == expected)
        assert server.terminate() == 0
        assert agent.process.poll() is None


def test_stages_of_several_ranks_may_all_be_on_other_hosts(tmp_path: Path) -> None:
    model = str(write_model(tmp_path))
    options = ("--tp", "2", *OPTIONS[2:])
    with RealServer(*options, model=model) as server:
        undisturbed = asyncio.run(_streams(server, tokens=FEW))
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    with RunningAgent(folders[0]) as first, RunningAgent(folders[1]) as second:
        second.allowed.write_text(first.front_end.public)
        hosts = first.hosts_file(first.stage, second.stage)
        with RealServer(*options, "--hosts", str(hosts), model=model) as server:
            assert asyncio.run(_streams(server, tokens=FEW)) == undisturbed
            assert len(server.worker_pids()) == 4
            # As after a failure of its host: the next server takes both agents at once.
            server.process.kill()
        with RealServer(*options, "--hosts", str(hosts), model=model) as server:
            assert asyncio.run(_streams(server, tokens=FEW)) == undisturbed


def test_delays_and_connections_that_only_seem_open_change_no_bit(tmp_path: Path) -> None:
    model = str(write_model(tmp_path))
    with RealServer(*OPTIONS, model=model) as server:
        undisturbed = asyncio.run(_streams(server, tokens=FEW))
    folder = tmp_path / "agent"
    folder.mkdir()
    with RunningAgent(folder) as agent, Relay(agent.address, seed=1) as relay:
        hosts = agent.hosts_file("here", agent.stage_at(relay.address))
        with RealServer(*OPTIONS, "--hosts", str(hosts), model=model) as server:
            assert asyncio.run(_streams(server, tokens=FEW)) == undisturbed

            def hang() -> None:
                relay.fall_silent()
                server.until(lambda: not server.is_ready())
                relay.go_on()

            assert asyncio.run(_streams(server, hang, tokens=FEW)) == undisturbed
            assert _restarts(server) == {"stall": 1}


def test_the_rows_of_one_rank_may_be_lost_while_the_agent_is_there(tmp_path: Path) -> None:
    model = str(write_model(tmp_path))
    options = ("--tp", "2", *OPTIONS[2:], "--step-deadline-seconds", "3")
    with RealServer(*options, model=model) as server:
        undisturbed = asyncio.run(_streams(server, tokens=FEW))
    folder = tmp_path / "agent"
    folder.mkdir()
    with ExitStack() as stack:
        first = stack.enter_context(Relay(Address(AGENT, 0), seed=1, at=Address(RELAY, 0)))
        rows = stack.enter_context(Relay(Address(AGENT, 0), seed=2, at=Address(RELAY, first.address.port + 1)))
        agent = stack.enter_context(RunningAgent(folder, Address(AGENT, 0), first.address.port))
        link = stack.enter_context(Relay(agent.address, seed=3, at=Address(RELAY, 0)))
        hosts = agent.hosts_file("here", agent.stage_at(link.address))
        server = stack.enter_context(RealServer(*options, "--hosts", str(hosts), model=model))

        def cut() -> None:
            rows.fall_silent()
            server.until(lambda: rows.held > 0)
            rows.cut()
            rows.go_on()

        def hang() -> None:
            rows.fall_silent()
            # The workers of the next launch do not serve before rows can pass: no request would be to blame.
            server.until(lambda: "no connection to the next stage" in server.log.read_text())
            rows.go_on()

        for restarts, fault in enumerate((cut, hang), 1):
            assert asyncio.run(_streams(server, fault, tokens=FEW)) == undisturbed
            assert sum(_restarts(server).values()) == restarts
        assert "is lost" not in server.log.read_text()
