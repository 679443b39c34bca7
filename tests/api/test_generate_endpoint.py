"""SGLang's shapes: /generate, /abort_request and /health_generate."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient, Response
from numaserve.server.surfaces.sglang import generate as generate_module
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, FakeEngine, make_context
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.masks import matches


def ask(client: TestClient, **fields: Any) -> Response:
    return client.post("/generate", json=({} if "input_ids" in fields else {"text": "hi"}) | fields)


def events_of(answer: Response) -> Iterator[dict[str, Any]]:
    *events, end = answer.text.removesuffix("\n\n").split("\n\n")
    assert end == "data: [DONE]"
    yield from (json.loads(event.removeprefix("data: ")) for event in events)


@pytest.mark.parametrize(
    ("parameters", "fits"),
    [({"regex": "[ab]+"}, "ab"), ({"json_schema": '{"type": "integer"}'}, "12"), ({"ebnf": 'root ::= "yes"'}, "yes")],
)
def test_parameters_may_constrain_the_answer(
    shared_client: TestClient, shared_engine: FakeEngine, parameters: dict[str, Any], fits: str
) -> None:
    shared_engine.admitted.clear()
    assert ask(shared_client, sampling_params=parameters).status_code == 200
    [request] = shared_engine.admitted
    assert request.matcher is not None
    assert matches(request.matcher(), ByteTokenizer(), fits)
    assert not matches(request.matcher(), ByteTokenizer(), "no")


class Callers:
    """Clients of one server whose answers stop after two tokens, and never end by themselves."""

    def __init__(self, *keys: str) -> None:
        self.engine = FakeEngine(pause_after=2)
        self.context = make_context(self.engine, keys=keys)
        transport = ASGITransport(app_over(self.context))
        headers = [{"Authorization": f"Bearer {key}"} for key in keys] or [{}]
        self.clients = [
            AsyncClient(transport=transport, base_url="http://x", headers=each, timeout=10) for each in headers
        ]

    async def begin(self, client: AsyncClient, path: str = "/generate", **fields: Any) -> asyncio.Task[Response]:
        """Send a request and wait until the engine has it."""
        count = len(self.engine.admitted)
        asking = asyncio.create_task(client.post(path, json={"text": "hi"} | fields))
        while len(self.engine.admitted) == count:
            await asyncio.sleep(0)
        return asking

    @staticmethod
    async def abort(client: AsyncClient, **fields: Any) -> int:
        """How many requests were aborted."""
        return int((await client.post("/abort_request", json=fields)).json()["aborted"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_can_be_aborted_by_its_id(stream: bool) -> None:
    callers = Callers()
    [client] = callers.clients
    asking = await callers.begin(client, rid="one", stream=stream)
    assert await callers.abort(client, rid="another") == 0
    assert await callers.abort(client, rid="one") == 1
    answer = await asking
    last = list(events_of(answer))[-1] if stream else answer.json()
    assert answer.status_code == 200
    assert last["meta_info"]["finish_reason"] == {"type": "abort", "message": "The request was aborted."}
    assert callers.engine.aborted == ["one-0"]
    assert await callers.abort(client, rid="one") == 0


async def test_an_id_that_is_taken_is_refused_until_it_is_free() -> None:
    callers = Callers()
    [client] = callers.clients
    first = await callers.begin(client, rid="one")
    refused = await client.post("/generate", json={"text": "hi", "rid": "one"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "request_id_taken")
    assert len(callers.engine.admitted) == 1
    await callers.abort(client, rid="one")
    await first
    callers.engine.pause_after = None
    assert (await client.post("/generate", json={"text": "hi", "rid": "one"})).status_code == 200
    assert (await client.post("/generate", json={"input_ids": [300], "rid": "one"})).status_code == 400
    assert (await client.post("/generate", json={"text": "hi", "rid": "one"})).status_code == 200


async def test_nobody_aborts_another_key_s_request() -> None:
    callers = Callers("key-a", "key-b")
    one, other = callers.clients
    mine, theirs = await callers.begin(one, rid="same"), await callers.begin(other, rid="same")
    assert await callers.abort(one, rid="same") == 1
    assert await callers.abort(one, rid="same") == await callers.abort(one, abort_all=True) == 0
    assert (await mine).json()["meta_info"]["finish_reason"]["type"] == "abort"
    assert not theirs.done()
    assert await callers.abort(other, abort_all=True) == 1
    assert (await theirs).json()["meta_info"]["finish_reason"]["type"] == "abort"


async def test_all_of_a_key_s_requests_can_be_aborted_whatever_surface_they_came_through() -> None:
    callers = Callers()
    [client] = callers.clients
    body = {"messages": [{"role": "user", "content": "hi"}], "model": MODEL, "stream": False}
    answers = [await callers.begin(client, path, **body) for path in ("/v1/chat/completions", "/api/chat")]
    assert await callers.abort(client, abort_all=True) == 2
    openai, ollama = [await answer for answer in answers]
    assert (openai.status_code, openai.json()["error"]["code"]) == (400, "aborted")
    assert (ollama.status_code, ollama.json()) == (400, {"error": "The request was aborted."})


async def test_a_request_whose_client_leaves_frees_its_id() -> None:
    callers = Callers()
    [client] = callers.clients
    asking = await callers.begin(client, rid="one")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    while callers.engine.aborted == []:
        await asyncio.sleep(0)
    callers.engine.pause_after = None
    assert (await client.post("/generate", json={"text": "hi", "rid": "one"})).status_code == 200


async def test_a_probe_waits_no_longer_than_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_module, "PROBE_SECONDS", 0.0)
    engine = FakeEngine(pause_after=0)
    transport = ASGITransport(app_over(make_context(engine)))
    async with AsyncClient(transport=transport, base_url="http://x") as client:
        answer = await client.get("/health_generate")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "generation_stalled")
    assert len(engine.aborted) == len(engine.admitted)
