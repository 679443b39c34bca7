"""What is checked of the application, over HTTP as a client sees it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import psutil
from ray import serve
from ray.cluster_utils import Cluster

PATIENCE_S = 150.0

QUESTION = [{"role": "user", "content": "Name the capital of France."}]
CHAT = {"messages": QUESTION, "temperature": 0, "max_tokens": 16}


class Bench:
    """The application at `url`, and the cluster that it runs on."""

    def __init__(self, url: str, cluster: Cluster, other: Any) -> None:
        self.url = url
        self.cluster = cluster
        self.other = other

    async def __aenter__(self) -> Bench:
        self.session = aiohttp.ClientSession(self.url, connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def whole(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        """A JSON answer, which must be a 200."""
        async with self.session.post(route, json=body) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def events(self, route: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream, which must come to its end."""
        async with self.session.post(route, json=body | {"stream": True}) as answer:
            assert answer.status == 200, await answer.text()
            lines = [line.decode().strip() async for line in answer.content]
        payloads = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert payloads[-1] == "[DONE]", payloads[-1]
        return [json.loads(payload) for payload in payloads[:-1]]


async def _answers(bench: Bench) -> str:
    whole = await bench.whole("/v1/chat/completions", CHAT)
    text = whole["choices"][0]["message"]["content"]
    assert "Paris" in text, text
    events = await bench.events("/v1/chat/completions", CHAT)
    assert len(events) > 4, "the answer came in one piece"
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == text
    async with bench.session.get("/v1/models?x=%2F") as answer:
        assert answer.status == 200
        assert (await answer.json())["data"]
    async with bench.session.post("/v1/chat/completions", json=CHAT | {"top_p": 3}) as answer:
        assert answer.status == 400
        assert "top_p" in (await answer.json())["error"]["message"]
    async with bench.session.get("/nowhere") as answer:
        assert answer.status == 404
    return f"a stream of {len(events)} events says what the whole answer says"


class Load:
    """Clients of their own questions, each of which asks again as soon as it is answered, whole and streamed by turns.

    What is answered to a question must always be the same.
    """

    def __init__(self, bench: Bench, clients: int) -> None:
        self.whole = self.streamed = 0
        self._bench = bench
        self._clients = clients
        self._answers: dict[int, list[int]] = {}

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._ask(client)) for client in range(self._clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        failed = [each for each in ended if not isinstance(each, asyncio.CancelledError)]
        assert not failed, failed

    async def rounds(self, count: int) -> None:
        """Wait until so many further requests were answered."""
        aim = self.whole + self.streamed + count
        await until(lambda: self.whole + self.streamed >= aim or any(task.done() for task in self._tasks))

    async def _ask(self, client: int) -> None:
        # Greedy, and drawn: the same seed draws the same tokens wherever it is computed.
        body = {"prompt": f"{client} times upon a time" * 4, "max_tokens": 40, "ignore_eos": True}
        body |= {"temperature": client % 2, "seed": client, "return_token_ids": True}
        while True:
            choice = (await self._bench.whole("/v1/completions", body))["choices"][0]
            self._compare(client, choice["token_ids"])
            self.whole += 1
            events = await self._bench.events("/v1/completions", body)
            self._compare(client, [token for event in events for token in event["choices"][0]["token_ids"]])
            self.streamed += 1

    def _compare(self, client: int, tokens: list[int]) -> None:
        assert self._answers.setdefault(client, tokens) == tokens, f"question {client} was answered in two ways"


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that no event tells of."""
    end = time.monotonic() + PATIENCE_S
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < end, condition
        await asyncio.sleep(0.2)


def replicas() -> int:
    """How many replicas serve."""
    states = serve.status().applications["default"].deployments["Replica"].replica_states
    return int(states.get("RUNNING", 0))


def servers() -> list[psutil.Process]:
    """The servers' processes; the parent of each is its replica."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "numaserve.server.cli.main" in (line := process.info["cmdline"] or []) and "--uds" in line
        if os.environ["TMPDIR"] in line[line.index("--uds") + 1]
    ]


async def _scales(bench: Bench) -> str:
    await until(lambda: replicas() == 1)
    async with Load(bench, 24) as load:
        await until(lambda: replicas() == 3)
        await load.rounds(24)
    await until(lambda: replicas() == 1)
    await until(lambda: len(servers()) == 1)
    return (
        f"1 -> 3 -> 1; {load.whole} whole and {load.streamed} streamed answers, none failed, equal questions equal bits"
    )


async def _outlives(bench: Bench) -> str:
    """A server, a replica and a host with its replicas are killed while clients are answered."""
    async with Load(bench, 24) as load:
        await until(lambda: replicas() == 3)
        await load.rounds(12)
        for victim_of in (lambda server: server, lambda server: server.parent()):
            before = servers()
            victim_of(before[0]).kill()
            await load.rounds(24)
            await until(lambda before=before: len(set(servers()) - set(before)) == 1)
        bench.cluster.remove_node(bench.other, allow_graceful=False)
        await load.rounds(24)
    await until(lambda: len(servers()) == 1)
    return f"server, replica and host killed: {load.whole} whole and {load.streamed} streamed answers, none failed"


async def _resumes(bench: Bench) -> str:
    """All servers are killed in the middle of a stream, which goes on where it was when there are others."""
    body = CHAT | {"temperature": 1, "seed": 7, "max_tokens": 150, "ignore_eos": True, "stream": True}
    aim = await bench.events("/v1/chat/completions", body)
    events: list[dict[str, Any]] = []
    async with bench.session.post("/v1/chat/completions", json=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                events.append(json.loads(line.removeprefix(b"data: ")))
            if len(events) == 20:
                for server in servers():
                    server.kill()
    assert [event["choices"] for event in events] == [event["choices"] for event in aim]
    assert len({event["id"] for event in events}) == 1
    return f"a stream of {len(events)} events went on behind the 20th, with the same bits"


CHECKS = {"answers": _answers, "resumes": _resumes, "scales": _scales, "outlives": _outlives}
