"""What is left out for servers that understand less, over a real connection."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from aiohttp import web
from numaserve.server.loadtest.client import Client, Dialect
from numaserve.server.loadtest.options import Traffic
from numaserve.server.loadtest.probe import Probed, probe
from numaserve.server.loadtest.target import Target, open_target
from numaserve.server.loadtest.workload.requests import BenchRequest
from numaserve.workers.interface.errors import OperatorError

T = TypeVar("T")


@dataclass
class Peer:
    """A server that refuses what it does not know, and keeps what it was asked."""

    refuses: frozenset[str] = frozenset()
    status: int = 400
    sends_usage: bool = True
    models: tuple[str, ...] = ("m",)
    seen: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.seen.append((request.path, dict(request.headers), body))
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": name} for name in self.models]})
        if request.path == "/v1/redirect/completions":
            raise web.HTTPFound("http://127.0.0.1:1/elsewhere")
        if request.path not in ("/v1/completions", "/v1/chat/completions"):
            raise web.HTTPNotFound
        asked = {*body, request.path}
        asked |= {"token_ids"} if isinstance(body.get("prompt"), list) else set()
        if refused := sorted(asked & self.refuses):
            return web.json_response({"error": {"message": f"no {refused[0]}"}}, status=self.status)
        choice = {"text": "a", "delta": {"content": "a"}, "finish_reason": "stop"}
        events: list[dict[str, Any]] = [{"choices": [choice]}]
        if self.sends_usage and "stream_options" in body:
            events.append({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 2}})
        return web.Response(text="".join(f"data: {json.dumps(each)}\n\n" for each in events) + "data: [DONE]\n\n")


@asynccontextmanager
async def listening(peer: Peer) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", peer.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield site.name
    finally:
        await runner.cleanup()


def with_peer(peer: Peer, work: Callable[[Target], Awaitable[T]], traffic: Traffic | None = None) -> T:
    async def scenario() -> T:
        async with listening(peer) as url, open_target(url, traffic or Traffic()) as target:
            return await work(target)

    return asyncio.run(scenario())


def probed(*refuses: str, sends_usage: bool = True, status: int = 400, token_ids: bool = True) -> Probed:
    peer = Peer(frozenset(refuses), status, sends_usage)
    return with_peer(peer, lambda target: probe(target, "m", Traffic(), token_ids=token_ids))


def test_a_server_that_understands_everything_is_asked_for_everything() -> None:
    found = probed()
    assert found.dialect == Dialect(chat=False, token_ids=True, usage=True, ignore_eos=True)
    assert found.notes == []


@pytest.mark.parametrize(
    ("refused", "given_up", "note"),
    [
        ("token_ids", {"token_ids": False}, "sending text"),
        ("ignore_eos", {"ignore_eos": False}, "outputs may be shorter"),
        ("stream_options", {"usage": False}, "counting each chunk"),
        ("/v1/completions", {"chat": True, "token_ids": False}, "measuring chat completions"),
    ],
)
@pytest.mark.parametrize("status", [400, 404, 422, 500])
def test_only_what_is_refused_is_given_up_and_told(
    refused: str, given_up: dict[str, bool], note: str, status: int
) -> None:
    found = probed(refused, status=status)
    assert found.dialect == Dialect(**{"chat": False, "token_ids": True, "usage": True, "ignore_eos": True} | given_up)
    assert note in found.notes[0]
    assert f"no {refused}" in found.notes[0]


def test_several_things_may_be_refused() -> None:
    found = probed("/v1/completions", "ignore_eos", "stream_options")
    assert found.dialect == Dialect(chat=True, token_ids=False, usage=False, ignore_eos=False)
    assert len(found.notes) == 4


def test_usage_that_is_asked_for_and_not_sent_is_told() -> None:
    found = probed(sends_usage=False)
    assert found.dialect.usage
    assert "the server reports no usage" in found.notes[0]


def test_text_that_is_wanted_is_no_concession() -> None:
    found = probed("token_ids", token_ids=False)
    assert (found.dialect.token_ids, found.notes) == (False, [])


def test_the_first_refusal_is_told_when_nothing_is_served() -> None:
    with pytest.raises(OperatorError, match="did not complete a test request: HTTP 400: no max_tokens"):
        probed("max_tokens")


def test_a_missing_key_is_told_after_one_request() -> None:
    peer = Peer(frozenset({"max_tokens"}), status=401)
    with pytest.raises(OperatorError, match="--api-key-file"):
        with_peer(peer, lambda target: probe(target, "m", Traffic(), token_ids=True))
    assert len(peer.seen) == 1


def test_the_key_and_the_extra_body_are_sent() -> None:
    peer, traffic = Peer(), Traffic(api_key="secret", extra_body={"temperature": 0.7, "top_k": 3})
    with_peer(peer, lambda target: probe(target, "m", traffic, token_ids=True), traffic)
    ((_, headers, body),) = peer.seen
    assert headers["Authorization"] == "Bearer secret"
    assert (body["temperature"], body["top_k"], body["stream"]) == (0.7, 3, True)


def test_the_only_model_is_found() -> None:
    assert with_peer(Peer(), lambda target: target.model()) == "m"


@pytest.mark.parametrize("models", [(), ("a", "b")])
def test_a_model_has_to_be_chosen_among_several(models: tuple[str, ...]) -> None:
    with pytest.raises(OperatorError, match="--model"):
        with_peer(Peer(models=models), lambda target: target.model())


def test_redirects_are_not_followed() -> None:
    async def ask(target: Target) -> str | None:
        target.api += "/redirect"
        return (await Client(target, "m", Dialect(), Traffic()).complete(BenchRequest([1], 1, 1))).error

    assert (with_peer(Peer(), ask) or "").startswith("HTTP 302")


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert with_peer(Peer(), lambda target: target.model()) == "m"


def test_a_server_that_is_not_there_is_told() -> None:
    async def scenario() -> None:
        async with listening(Peer()) as url:
            pass
        async with open_target(url, Traffic()) as target:
            await target.model()

    with pytest.raises(OperatorError, match="Check that the server is running"):
        asyncio.run(scenario())


def test_a_server_without_flush_cache_is_told() -> None:
    with pytest.raises(OperatorError, match="leave out --flush-cache"):
        with_peer(Peer(), lambda target: target.flush_cache())


@pytest.mark.parametrize(
    ("url", "api", "root"),
    [
        ("http://h:1", "http://h:1/v1", "http://h:1"),
        ("http://h:1/v1/", "http://h:1/v1", "http://h:1"),
        ("https://h/x/v3", "https://h/x/v3", "https://h/x"),
    ],
)
def test_the_version_may_be_part_of_the_url(url: str, api: str, root: str) -> None:
    async def scenario() -> tuple[str, str]:
        async with open_target(url, Traffic()) as target:
            return target.api, target.root

    assert asyncio.run(scenario()) == (api, root)


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "http://", "http://h?x=1", "http://h/a b"])
def test_what_is_no_url_is_a_mistake(url: str) -> None:
    async def scenario() -> None:
        async with open_target(url, Traffic()):
            pass

    with pytest.raises(OperatorError, match="is not a valid URL"):
        asyncio.run(scenario())
