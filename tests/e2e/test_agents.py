"""A model whose stages are on two hosts has the bits of one host, whatever happens to the agent of the second one."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from numaserve.workers.interface.host_links import Address

from tests.support.agents import RunningAgent
from tests.support.chat_model import write_model
from tests.support.real_server import RealServer
from tests.support.relay import Relay

STREAMS = 6
MANY = 160  # tokens
FEW = 16  # where four ranks share two cores
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
# Addresses of this host that nothing else uses, so that a port that is free at one of them is free at both.
AGENT, RELAY = "127.0.0.3", "127.0.0.4"
OPTIONS = ("--context-length", "256", "--threads-per-worker", "1", "--kv-cache-gib", "0.05")
ONE_RANK, TWO_RANKS = ("--tp", "1", *OPTIONS), ("--tp", "2", *OPTIONS)

Streams = list[list[Any]]


async def _streams(server: RealServer, fault: Callable[[], None] | None = None, tokens: int = FEW) -> Streams:
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


def _restarts(server: RealServer) -> Counter[str]:
    """The restarts so far, by the reason."""
    found = [(name.split(), count) for name, count in server.metrics().items()]
    return Counter({name[1]: int(count) for name, count in found if name[0] == "worker_restarts_total" and count})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("agents")))


@pytest.fixture(scope="module")
def many(model: str) -> Streams:
    """The undisturbed streams of one rank of this host."""
    with RealServer(*ONE_RANK, model=model) as server:
        return asyncio.run(_streams(server, tokens=MANY))


@pytest.fixture(scope="module")
def few_of_two(model: str) -> Streams:
    """The undisturbed streams of two ranks of this host."""
    with RealServer(*TWO_RANKS, model=model) as server:
        return asyncio.run(_streams(server))


@pytest.fixture(scope="module")
def pair(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealServer, RunningAgent]]:
    """A server with a stage here and a stage at the agent, which outlives the server."""
    with (
        RunningAgent(tmp_path_factory.mktemp("agent")) as agent,
        RealServer(*ONE_RANK, "--hosts", str(agent.hosts_file("here", agent.stage)), model=model) as server,
    ):
        yield server, agent
        assert server.terminate() == 0
        assert agent.process.poll() is None


def test_an_agent_changes_no_bit_and_may_be_lost_at_any_time(
    pair: tuple[RealServer, RunningAgent], many: Streams
) -> None:
    server, agent = pair
    assert asyncio.run(_streams(server, tokens=MANY)) == many
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

    expected = _restarts(server)
    for fault, reason in ((lose_worker, "signal"), (lose_own_worker, "signal"), (lose_agent, "stall")):
        assert asyncio.run(_streams(server, fault, MANY)) == many
        expected[reason] += 1
        server.until(lambda: server.is_ready() and _restarts(server) == expected)


def test_stages_of_several_ranks_may_all_be_on_other_hosts(model: str, few_of_two: Streams, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    with RunningAgent(folders[0]) as first, RunningAgent(folders[1]) as second:
        second.allowed.write_text(first.front_end.public)
        hosts = first.hosts_file(first.stage, second.stage)
        with RealServer(*TWO_RANKS, "--hosts", str(hosts), model=model) as server:
            assert asyncio.run(_streams(server)) == few_of_two
            assert len(server.worker_pids()) == 4
            # As after a failure of its host: the next server takes both agents at once.
            server.process.kill()
        with RealServer(*TWO_RANKS, "--hosts", str(hosts), model=model) as server:
            assert asyncio.run(_streams(server)) == few_of_two


def test_delays_and_agents_that_only_seem_connected_change_no_bit(
    model: str, pair: tuple[RealServer, RunningAgent], many: Streams, tmp_path: Path
) -> None:
    few = [[values[:FEW] for values in stream] for stream in many]
    server, stopped = pair
    expected = _restarts(server) + Counter(["stall"])
    with RunningAgent(tmp_path) as agent, Relay(agent.address, seed=1) as relay:
        hosts = agent.hosts_file("here", agent.stage_at(relay.address))
        with RealServer(*ONE_RANK, "--hosts", str(hosts), model=model) as far:
            assert asyncio.run(_streams(far)) == few

            def stop() -> None:
                stopped.process.send_signal(signal.SIGSTOP)
                server.until(lambda: not server.is_ready())
                stopped.process.send_signal(signal.SIGCONT)

            def hang() -> None:
                relay.fall_silent()
                far.until(lambda: not far.is_ready())
                relay.go_on()

            with ThreadPoolExecutor() as pool:  # both are waited for at once
                cases = (server, stop, MANY), (far, hang, FEW)
                disturbed = [pool.submit(asyncio.run, _streams(*each)) for each in cases]
                assert [each.result() for each in disturbed] == [many, few]
            assert _restarts(far) == {"stall": 1}
    server.until(lambda: server.is_ready() and _restarts(server) == expected)


def test_the_rows_of_one_rank_may_be_lost_while_the_agent_is_there(
    model: str, few_of_two: Streams, tmp_path: Path
) -> None:
    options = (*TWO_RANKS, "--step-deadline-seconds", "3")
    with ExitStack() as stack:
        first = stack.enter_context(Relay(Address(AGENT, 0), seed=1, at=Address(RELAY, 0)))
        rows = stack.enter_context(Relay(Address(AGENT, 0), seed=2, at=Address(RELAY, first.address.port + 1)))
        agent = stack.enter_context(RunningAgent(tmp_path, Address(AGENT, 0), first.address.port))
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
            assert asyncio.run(_streams(server, fault)) == few_of_two
            assert sum(_restarts(server).values()) == restarts
        assert "is lost" not in server.log.read_text()
