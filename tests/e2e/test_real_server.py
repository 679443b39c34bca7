"""Load and violence against the real thing: the serve command, its workers and a tiny model."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.chat_model import write_model
from tests.support.real_server import RealServer, completion, shared_memory_of

CACHE = ("--kv-cache-gib", "0.25")
QUEUED, RUNNING = 8, 2
TOKENS = 200  # so many that requests come while others run
LONG = 1500  # so many that a stream still runs when the server has been asked for something else


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("real")))


@pytest.fixture(scope="module")
def server(model: str) -> Iterator[RealServer]:
    """Two ranks, for tests that leave it serving; executed, as a user does."""
    with RealServer("--tp", "2", *CACHE, model=model, executed=True) as server:
        yield server


def settled(server: RealServer) -> dict[str, float]:
    """The metrics once nothing runs any more; no page is lost then."""

    def idle() -> bool:
        now = server.metrics()
        return now["requests running"] == now["requests waiting"] == now["kv_pages active"] == 0

    server.until(idle)
    now = server.metrics()
    assert now["kv_pages free"] + now["kv_pages cached"] == server.info()["num_pages"]
    return now


def serves(server: RealServer) -> None:
    answer = server.complete("The capital of France is", 4)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 4


def test_two_hundred_concurrent_requests_all_complete_and_none_disturbs_another(server: RealServer) -> None:
    prompts = [f"The number {number} is" for number in range(20)]
    alone = [server.complete(prompt, 6).json()["choices"][0]["text"] for prompt in prompts]
    before = settled(server)

    async def all_at_once() -> list[httpx.Response]:
        async with server.client() as client:
            bodies = [completion(prompts[index % 20], 6) for index in range(200)]
            return await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))

    answers = asyncio.run(all_at_once())
    assert {answer.status_code for answer in answers} == {200}
    assert [answer.json()["choices"][0]["text"] for answer in answers] == alone * 10
    after = settled(server)
    assert after["request_outcomes_total length"] - before["request_outcomes_total length"] == 200
    assert after["generation_tokens_total"] - before["generation_tokens_total"] == 1200


def test_fifty_clients_that_leave_in_mid_stream_leave_every_page_free_or_cached(server: RealServer) -> None:
    before = settled(server)

    async def leave_early(client: httpx.AsyncClient, index: int) -> None:
        body = completion(f"Story {index}: " + "word " * index, 1000, stream=True)
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            chunks = answer.aiter_text()
            for _ in range(index % 4):
                await anext(chunks)

    async def all_at_once() -> None:
        async with server.client() as client:
            await asyncio.gather(*(leave_early(client, index) for index in range(50)))

    asyncio.run(all_at_once())
    after = settled(server)
    assert after["request_outcomes_total abort"] - before.get("request_outcomes_total abort", 0) == 50
    serves(server)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_is_a_pause_in_a_stream_and_the_same_text(server: RealServer, victim: int) -> None:
    with server.stream(TOKENS) as payloads:
        *undisturbed, done = payloads
    assert done == "[DONE]"
    first_life = server.worker_pids()
    assert not any(shared_memory_of(pid) for pid in first_life)
    with server.stream(TOKENS) as payloads:
        os.kill(first_life[victim], signal.SIGKILL)
        *disturbed, done = payloads
    assert done == "[DONE]"
    assert _texts(disturbed) == _texts(undisturbed)
    serves(server)
    assert not set(first_life) & set(server.worker_pids())
    assert not [pid for pid in first_life if Path(f"/proc/{pid}").exists()]
    assert len(server.socket_folders()) == 1
    settled(server)


def _texts(payloads: list[str]) -> list[str]:
    return [choice["text"] for payload in payloads for choice in json.loads(payload)["choices"]]


def test_with_a_queue_of_eight_the_rest_get_429_and_none_is_lost(model: str) -> None:
    limits = ("--max-queued-requests", str(QUEUED), "--max-running-requests", str(RUNNING))

    async def all_at_once(server: RealServer) -> list[httpx.Response]:
        async with server.client() as client:
            bodies = [completion(f"Number {index}", TOKENS) for index in range(60)]
            return await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))

    with RealServer("--tp", "1", *limits, *CACHE, model=model) as server:
        answers = asyncio.run(all_at_once(server))
        served = [answer for answer in answers if answer.status_code == 200]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert len(served) + len(refused) == 60
        assert QUEUED + RUNNING <= len(served) < 60
        assert all(answer.json()["usage"]["completion_tokens"] == TOKENS for answer in served)
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        assert settled(server)["request_outcomes_total queue_full"] == len(refused)
        serves(server)


def test_a_hung_worker_is_replaced_and_sigterm_finishes_the_running_stream(model: str) -> None:
    with RealServer("--tp", "2", "--step-deadline-seconds", "2", *CACHE, model=model) as server:
        hung = server.worker_pids()[1]
        with server.stream(TOKENS) as payloads:
            *undisturbed, _ = payloads
        with server.stream(TOKENS) as payloads:
            os.kill(hung, signal.SIGSTOP)
            *disturbed, _ = payloads
        assert _texts(disturbed) == _texts(undisturbed)
        assert hung not in server.worker_pids()
        serves(server)
        with server.stream(LONG) as payloads:
            server.worker_pids()
            server.process.send_signal(signal.SIGTERM)
            server.until(lambda: server.complete("x", 1).status_code == 503)
            *_, last, done = payloads
        assert json.loads(last)["choices"][0]["finish_reason"] == "length"
        assert done == "[DONE]"
        assert server.process.wait(30) == 0
        assert server.orphans() == []
        assert server.socket_folders() == []


def test_workers_go_when_the_front_end_is_killed_and_leave_nothing(model: str) -> None:
    with RealServer("--tp", "2", *CACHE, model=model) as server:
        with server.stream(LONG):
            server.worker_pids()
            server.process.kill()
            server.process.wait()
        server.until(lambda: server.orphans() == [])
        assert server.socket_folders() == []
