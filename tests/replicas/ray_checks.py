"""What is checked of the application, over HTTP as a client sees it."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
from ray.cluster_utils import Cluster

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


CHECKS = {"answers": _answers}
