"""Whose a request is: the scheduler shares the server between clients, whom keys or addresses tell apart."""

import asyncio
from contextlib import AbstractContextManager
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient
from model_bodies import GENERATING, POOLING
from numaserve.server.app.application import create_app
from numaserve.server.generation.purpose import Embeds
from numaserve.server.http.auth.key_file import ApiKey
from numaserve.server.http.auth.keys import ApiKeys
from numaserve.server.http.auth.peers import client_at
from numaserve.server.scheduler.client import EVERYBODY, Client
from numaserve.server.text.caller import CALLER
from numaserve.server.text.executor import Executor
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import EMBEDDING_SIZE, FakeEngine, make_context


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        (("192.0.2.7", 40000), "192.0.2.7"),
        (("192.0.2.7", 50000), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::1", 1), "2001:db8:1:2::/64"),
        (("2001:db8:1:3::1", 1), "2001:db8:1:3::/64"),
        (("fe80::1%eth0", 1), "fe80::/64"),
        (("::ffff:192.0.2.7", 1), "192.0.2.7"),
        (("::1", 1), "::/64"),
    ],
)
def test_a_client_without_key_is_its_address_or_its_ipv6_site(peer: tuple[str, int], name: str) -> None:
    assert client_at(peer) == Client(name)


@pytest.mark.parametrize("peer", [None, (), ("", 0), ("testclient", 50000), (None, 0)])
def test_all_whose_address_is_not_told_are_one_client(peer: Any) -> None:
    assert client_at(peer) == EVERYBODY


def clients_of(engine: FakeEngine) -> set[Client]:
    clients = {request.client for request in engine.admitted}
    engine.admitted.clear()
    return clients


def test_every_surface_says_whose_its_sequences_are_and_another_key_is_another_client() -> None:
    engine = FakeEngine()
    context = make_context(engine, keys=[ApiKey("key-a", "alice", weight=2.5), ApiKey("key-b")])
    with TestClient(create_app(context)) as http:
        for headers, weight in (({"X-Api-Key": "key-a"}, 2.5), ({"Authorization": "Bearer key-b"}, 1.0)):
            seen = set()
            for path, body in GENERATING.items():
                assert http.post(path, json=body, headers=headers).status_code == 200
                seen |= clients_of(engine)
            [client] = seen
            assert client.weight == weight
            assert len(client.name) == 16
            assert "key" not in client.name
            assert http.get("/health_generate", headers=headers).status_code == 200
            assert clients_of(engine) == {client}


def test_texts_are_worked_on_as_the_client_s(monkeypatch: pytest.MonkeyPatch) -> None:
    callers = []
    admitted = Executor.admitted

    def noted(executor: Executor) -> AbstractContextManager[None]:
        callers.append(CALLER.get().name)
        return admitted(executor)

    monkeypatch.setattr(Executor, "admitted", noted)
    engine = FakeEngine()
    with TestClient(create_app(make_context(engine, keys=["key-a"]))) as http:
        assert http.get("/ping").status_code == 200  # needs no key, and is nobody's
        for path, body in (GENERATING | {"/tokenize": {"prompt": "hi"}}).items():
            callers.clear()
            assert http.post(path, json=body, headers={"X-Api-Key": "key-a"}).status_code == 200
            assert callers, path
            assert set(callers) == {ApiKeys([ApiKey("key-a")]).client([(b"x-api-key", b"key-a")]).name}


def test_what_is_pooled_is_a_client_s_too() -> None:
    engine = FakeEngine()
    with TestClient(create_app(make_context(engine, keys=["key-a"], purpose=Embeds(EMBEDDING_SIZE)))) as http:
        seen = set()
        for path, body in POOLING.items():
            assert http.post(path, json=body, headers={"X-Api-Key": "key-a"}).status_code == 200
            seen |= clients_of(engine)
    assert len(seen) == 1
    assert seen != {EVERYBODY}


def test_two_keys_of_one_request_are_the_client_of_the_one_in_authorization() -> None:
    engine = FakeEngine()
    with TestClient(create_app(make_context(engine, keys=["key-a", "key-b"]))) as http:
        both = {"Authorization": "Bearer key-a", "X-Api-Key": "key-b"}
        for headers in ({"X-Api-Key": "key-a"}, {"Authorization": "Bearer key-a"}, both):
            assert http.post("/v1/completions", json={"prompt": "hi"}, headers=headers).status_code == 200
    assert len(clients_of(engine)) == 1


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
def test_no_header_makes_a_caller_somebody_else(header: str) -> None:
    engine = FakeEngine()

    async def ask(address: str) -> None:
        transport = ASGITransport(app_over(make_context(engine)), client=(address, 1))
        async with AsyncClient(transport=transport, base_url="http://localhost") as http:
            named = {header: "for=203.0.113.9" if header == "Forwarded" else "203.0.113.9"}
            await http.post("/v1/completions", json={"prompt": "hi"}, headers=named)

    asyncio.run(ask("192.0.2.7"))
    assert clients_of(engine) == {Client("192.0.2.7")}
    asyncio.run(ask("2001:db8::1"))
    assert clients_of(engine) == {Client("2001:db8::/64")}


def test_a_key_that_has_gone_since_is_the_same_client_still() -> None:
    engine = FakeEngine()
    context = make_context(engine, keys=["key-a"])
    assert context.api_keys is not None
    headers = [(b"x-api-key", b"key-a")]
    before = context.api_keys.client(headers)
    context.api_keys.replace([ApiKey("key-b")])
    assert context.api_keys.client(headers) == before
