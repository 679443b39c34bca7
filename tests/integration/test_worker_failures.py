"""Workers that die, hang, lie or send garbage."""

import asyncio
import errno
import os
import re
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
    running_engine,
    serving,
    tokens_of,
    until,
)
from numaserve.server.engine.types import GenerationFailed, NotReady
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.supervisor import group
from numaserve.server.supervisor.cpu_time import ThreadTime
from numaserve.server.supervisor.group import GroupFailed
from numaserve.shm_comm.segment import Segment, create_segment

SLOW = ("--step-ms", "5")


def _words(prompt: list[int], count: int) -> str:
    return "".join(f"w{token} " for token in expected_tokens(prompt, GREEDY, count))


async def _serves_again(server: Server) -> None:
    await until(server.engine.is_ready)
    answer = await server.complete(prompt=[11, 12], max_tokens=10)
    assert answer.json()["choices"][0]["text"] == _words([11, 12], 10)
    assert server.pages()["active"] == 0


async def _more_tokens(server: Server, count: int) -> None:
    before = server.metric("generation_tokens_total")
    await until(lambda: server.metric("generation_tokens_total") > before + count)


async def _killed(server: Server) -> None:
    os.kill(pids_of(server.engine)[0], signal.SIGKILL)
    await until(lambda: not server.engine.is_ready())


async def _stream_text(server: Server, count: int = 1000) -> str:
    return (await server.complete(prompt=[10], max_tokens=count, stream=True)).text


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_death_in_mid_stream_is_a_pause_with_the_same_tokens(victim: int) -> None:
    async with serving(Options(ranks=2, faults=SLOW)) as server:
        first_life = pids_of(server.engine)
        stream = asyncio.create_task(_stream_text(server, 80))
        await until(lambda: server.metric("generation_tokens_total") > 3)
        os.kill(first_life[victim], signal.SIGKILL)
        chunks = events_of(await stream)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == _words([10], 80)
        await _serves_again(server)
        assert not set(first_life) & set(pids_of(server.engine))
        assert not any(map(process_exists, first_life))
        assert server.metric("request_outcomes_total", reason="error") == 0
        assert server.metric("requests_resumed_total") == 1
        assert server.metric("worker_restarts_total", reason="signal") == 1
        assert server.metric("resume_pause_seconds_count") == 1
        assert server.metric("worker_up", rank=str(victim)) == 1


async def test_requests_wait_while_the_workers_are_replaced(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.touch()
    async with serving(Options(queued=1, running=1, faults=(*SLOW, "--weights", str(weights)))) as server:
        weights.unlink()
        await _killed(server)
        assert (await server.client.get("/health")).status_code == 503
        assert (await server.client.get("/livez")).status_code == 200
        jobs = [asyncio.create_task(server.complete(prompt=[11], max_tokens=80)) for _ in range(3)]
        await until(lambda: any(job.done() for job in jobs))  # the one that finds the queue full
        weights.touch()
        statuses = sorted(answer.status_code for answer in await gather(*jobs))
        assert statuses == [200, 200, 429]
        await _serves_again(server)


async def test_requests_wait_no_longer_than_they_should() -> None:
    async with serving(Options(faults=SLOW, resume_timeout_s=0.0)) as server:
        stream = asyncio.create_task(_stream_text(server))
        whole = asyncio.create_task(server.complete(prompt=[12], max_tokens=1000))
        await until(lambda: server.metric("generation_tokens_total") > 6)
        os.kill(pids_of(server.engine)[0], signal.SIGKILL)
        last = events_of(await stream)[-1]
        assert last["error"]["code"] == "not_ready" and "within 0 s" in last["error"]["message"]
        assert (await whole).status_code == 503
        await _serves_again(server)


async def test_three_deaths_without_an_answer_are_the_end() -> None:
    async with serving(Options()) as server:
        for _ in range(3):
            await until(server.engine.is_ready)
            await _killed(server)
        assert "SIGKILL" in await asyncio.wait_for(server.given_up, 10)
        assert not server.engine.is_alive()
        assert pids_of(server.engine) == []
        assert (await server.client.get("/livez")).status_code == 503
        assert (await server.complete(prompt=[11], max_tokens=1)).status_code == 503


async def test_a_request_that_kills_the_workers_is_found_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(Options(ranks=2, faults=(*SLOW, "--die-of-token", "7"))) as server:
        prompts = [[10 + i] * 3 for i in range(7)] + [[11, 7]]  # never sampled, so that no other has it
        jobs = [asyncio.create_task(server.complete(prompt=prompt, max_tokens=20)) for prompt in prompts]
        *answers, convicted = await gather(*jobs)
        assert convicted.status_code == 500
        told = re.search(r"while they computed (\S+)\. The last failure: ", convicted.json()["error"]["message"])
        assert told and f"request {told[1]} made the workers fail repeatedly" in caplog.text
        for prompt, answer in zip(prompts, answers, strict=False):
            assert answer.json()["choices"][0]["text"] == _words(prompt, 20)
        restarts = server.engine.server_info()["restarts"]
        assert isinstance(restarts, int) and restarts <= 5
        await _serves_again(server)


async def test_a_worker_that_hangs_while_idle_is_noticed_before_a_request_comes() -> None:
    async with serving(Options(ranks=2, beat_s=0.05, deadline_s=0.5)) as server:
        os.kill(pids_of(server.engine)[1], signal.SIGSTOP)
        await until(lambda: server.metric("worker_restarts_total", reason="stall") == 1)
        await until(server.engine.is_ready)
        await _serves_again(server)


async def test_a_worker_without_a_processor_is_awaited_and_said_to_be_starved(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its steps take several times the deadline. What Linux says of a starved thread is played here."""
    monkeypatch.setattr(group, "thread_times", lambda pid: {pid: ThreadTime("R", 0.0, 0.0)})
    async with serving(Options(ranks=2, faults=("--step-ms", "1500"), deadline_s=0.5)) as server:
        first_life = pids_of(server.engine)
        answer = await server.complete(prompt=[11, 12], max_tokens=2)
        assert answer.json()["choices"][0]["text"] == _words([11, 12], 2)
        assert pids_of(server.engine) == first_life
        assert server.metric("worker_starved_seconds_total", rank="1") > 1.0
        assert [worker.starved for worker in server.engine.overview().workers] == [True, True]
        assert "worker 0, 1 is starved of CPU" in caplog.text


async def test_a_starved_worker_that_is_stopped_is_a_worker_that_died() -> None:
    async with serving(Options(ranks=2, beat_s=0.05, deadline_s=0.5)) as server:
        for pid in pids_of(server.engine):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))
        os.kill(pids_of(server.engine)[1], signal.SIGSTOP)
        await until(lambda: server.metric("worker_restarts_total", reason="stall") == 1)
        await until(server.engine.is_ready)
        await _serves_again(server)


async def test_the_heart_of_idle_workers_beats_and_is_no_step() -> None:
    async with serving(Options(beat_s=0.02)) as server:
        await until(lambda: server.engine._steps.beats > 2)
        assert server.engine.server_info()["steps"] == 0
        assert server.metric("step_tokens_count") == 0
        await _serves_again(server)


async def test_a_failed_step_ends_its_requests_only() -> None:
    async with running_engine(Options(ranks=2, faults=("--fail-step", "3", "--fault-rank", "0"))) as engine:
        pids = pids_of(engine)
        with pytest.raises(GenerationFailed, match="this step failed on purpose"):
            await generate(engine, [11, 12], 10)
        assert tokens_of(await generate(engine, [11, 12], 10)) == expected_tokens([11, 12], GREEDY, 10)
        assert pids_of(engine) == pids


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


async def test_a_command_that_does_not_exist_is_told(tmp_path: Path) -> None:
    engine = make_engine(Options(ranks=2, command=[str(tmp_path / "missing")]), Metrics("fake"))
    with pytest.raises(GroupFailed, match="could not be started"):
        await engine.start()


async def test_what_a_start_lacks_may_be_there_a_moment_later() -> None:
    lacking = asyncio.Event()

    def make_ring() -> Segment:
        if lacking.is_set():
            raise OSError(errno.EMFILE, "Too many open files")
        return create_segment(2, 1, 4096)

    async with serving(Options(ranks=2, ring_factory=make_ring)) as server:
        lacking.set()
        os.kill(pids_of(server.engine)[0], signal.SIGKILL)
        await until(lambda: not server.engine.is_ready() and not pids_of(server.engine))
        asyncio.get_running_loop().call_later(0.2, lacking.clear)
        await _serves_again(server)


async def test_loading_is_reported_over_all_ranks() -> None:
    async with serving(Options(ranks=2)) as server:
        assert server.load[-1] == (2000, 2000)
        assert {total for _, total in server.load} == {2000}  # from the first report of the first rank on
        await until(lambda: server.metric("worker_rss_bytes", rank="1") == 1501)
        assert server.metric("info", version="0", model="fake", isa="fake", tp="2") == 1
