"""Workers that die, hang, lie or send garbage."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from fake_worker import expected_tokens
from harness import (
    GREEDY,
    Options,
    Server,
    events_of,
    gather,
    generate,
    make_engine,
    pids_of,
    process_exists,
    run,
    running_engine,
    serving,
    tokens_of,
    until,
)
from numaserve.server.engine.types import GenerationFailed, NotReady
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.supervisor.group import GroupFailed
from numaserve.server.supervisor.policy import RestartPolicy

SLOW = ("--step-ms", "5")


async def _serves_again(server: Server) -> None:
    await until(server.engine.is_ready)
    answer = await server.complete(prompt=[11, 12], max_tokens=10)
    assert answer.json()["choices"][0]["text"] == "".join(f"w{t} " for t in expected_tokens([11, 12], GREEDY, 10))
    assert server.pages()["active"] == 0


async def _stream_text(server: Server, count: int = 1000) -> str:
    return (await server.complete(prompt=[10], max_tokens=count, stream=True)).text


@pytest.mark.parametrize("victim", [0, 1])
async def test_death_in_mid_stream_ends_it_with_an_error_and_the_server_serves_again(victim: int) -> None:
    async with serving(Options(ranks=2, faults=SLOW)) as server:
        first_life = pids_of(server.engine)
        stream = asyncio.create_task(_stream_text(server))
        await until(lambda: server.metric("generation_tokens_total") > 3)
        os.kill(first_life[victim], signal.SIGKILL)
        *chunks, last = events_of(await stream)
        assert chunks and all(chunk["choices"] for chunk in chunks)
        assert f"worker {victim} was ended by SIGKILL" in last["error"]["message"]
        assert "send it again" in last["error"]["message"]
        await _serves_again(server)
        assert not set(first_life) & set(pids_of(server.engine))
        assert not any(map(process_exists, first_life))
        assert server.metric("request_outcomes_total", reason="error") == 1
        assert server.metric("worker_up", rank=str(victim)) == 1


async def test_queued_requests_outlive_a_death_and_running_ones_get_500() -> None:
    async with serving(Options(running=2, faults=SLOW)) as server:
        jobs = [asyncio.create_task(server.complete(prompt=[10 + i], max_tokens=100)) for i in range(5)]
        await until(lambda: server.metric("generation_tokens_total") > 3)
        await until(lambda: server.engine.server_info()["waiting"] == 3)
        os.kill(pids_of(server.engine)[0], signal.SIGKILL)
        statuses = sorted(answer.status_code for answer in await gather(*jobs))
        assert statuses == [200, 200, 200, 500, 500]


async def test_requests_during_a_restart_get_503() -> None:
    async with serving(Options()) as server:
        os.kill(pids_of(server.engine)[0], signal.SIGKILL)
        await until(lambda: not server.engine.is_ready())
        answer = await server.complete(prompt=[11], max_tokens=1)
        assert answer.status_code == 503
        assert (await server.client.get("/health")).status_code == 503
        assert (await server.client.get("/livez")).status_code == 200
        await _serves_again(server)


async def test_three_deaths_in_a_minute_are_the_end() -> None:
    async with serving(Options(faults=("--die-at-step", "1"))) as server:
        for _ in range(3):
            await until(lambda: server.engine.is_ready() or server.given_up.done())
            answer = await server.complete(prompt=[11, 12], max_tokens=10)
            assert answer.status_code == 500
        assert "SIGKILL" in await asyncio.wait_for(server.given_up, 10)
        assert not server.engine.is_alive()
        assert pids_of(server.engine) == []
        assert (await server.client.get("/livez")).status_code == 503
        assert (await server.complete(prompt=[11], max_tokens=1)).status_code == 503


async def test_a_worker_that_hangs_is_a_worker_that_died(tmp_path: Path) -> None:
    faults = ("--hang-at-step", "2", "--fault-rank", "1", "--once", str(tmp_path / "hung"))
    async with serving(Options(ranks=2, faults=faults, deadline_s=0.5)) as server:
        answer = await server.complete(prompt=[11, 12], max_tokens=10)
        assert answer.status_code == 500
        assert "no answer to a step from worker 1 for 0.5 s" in answer.json()["error"]["message"]
        await _serves_again(server)


async def test_a_failed_step_ends_its_requests_only() -> None:
    async with running_engine(Options(ranks=2, faults=("--fail-step", "3", "--fault-rank", "0"))) as engine:
        pids = pids_of(engine)
        with pytest.raises(GenerationFailed, match="this step failed on purpose"):
            await generate(engine, [11, 12], 10)
        assert tokens_of(await generate(engine, [11, 12], 10)) == expected_tokens([11, 12], GREEDY, 10)
        assert pids_of(engine) == pids


async def test_a_result_that_answers_another_plan_restarts_the_group(tmp_path: Path) -> None:
    async with serving(Options(faults=("--wrong-at-step", "2", "--once", str(tmp_path / "lied")))) as server:
        assert (await server.complete(prompt=[11, 12], max_tokens=10)).status_code == 500
        await _serves_again(server)


async def test_garbage_from_a_worker_is_dropped_and_counted() -> None:
    async with running_engine(Options(ranks=2, faults=("--garbage",))) as engine:
        assert tokens_of(await generate(engine, [11, 12], 20)) == expected_tokens([11, 12], GREEDY, 20)
        dropped = engine.server_info()["dropped_frames"]
        assert isinstance(dropped, int) and dropped >= 20 * 7


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (("--fail-load", "no such tensor: lm_head; is this the right folder?"), "worker 1: no such tensor"),
        (("--die-loading",), "worker 1 exited with status 3"),
    ],
)
async def test_a_worker_that_cannot_load_says_so_to_whoever_starts_it(faults: tuple[str, ...], message: str) -> None:
    engine = make_engine(Options(ranks=2, faults=(*faults, "--fault-rank", "1")), Metrics("fake"))
    with pytest.raises(GroupFailed, match=message):
        await engine.start()
    assert not engine.is_alive()
    assert pids_of(engine) == []
    with pytest.raises(NotReady):
        await generate(engine, [11], 1)


async def test_a_command_that_does_not_exist_is_told() -> None:
    engine = make_engine(Options(ranks=2, command=["/nonexistent/worker"]), Metrics("fake"))
    with pytest.raises(GroupFailed, match="could not be started"):
        await engine.start()


def test_restarts_that_never_become_ready_are_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        marker = tmp_path / "broken"
        never = RestartPolicy(window_s=0.0)  # only the second rule is left
        async with serving(Options(policy=never, faults=("--fail-load", "gone", "--once", str(marker)))) as server:
            raise AssertionError(f"the first start should have failed: {server}")

    with pytest.raises(GroupFailed, match="gone"):
        run(scenario())


async def test_loading_is_reported_over_all_ranks() -> None:
    async with serving(Options(ranks=2)) as server:
        assert server.load[-1] == (2000, 2000)
        assert {total for _, total in server.load} == {2000}  # from the first report of the first rank on
        await until(lambda: server.metric("worker_rss_bytes", rank="1") == 1501)
        assert server.metric("info", version="0", model="fake", isa="fake", tp="2") == 1
