"""Requests and answers on their way through the gateway, over real sockets."""

import asyncio
import json
import logging
from typing import Any

import httpx
import msgspec
import pytest
from fake_model_process import BLOB
from numaserve.server.gateway import gateway
from numaserve.server.gateway.passing import IDLE_CONNECTIONS
from numaserve.server.http.auth.key_file import ApiKey
from numaserve.server.http.auth.passed_clients import PassedClient
from numaserve.server.http.auth.quota import KeyLimits
from numaserve.server.http.ui_files import ui_files
from numaserve.server.supervisor.policy import RestartPolicy
from numaserve.server.surfaces.ollama.greeting import OLLAMA_VERSION
from open_gateway import Open, Opened, kill, started

from tests.support.error_forms import error_message

ONE: dict[str, dict[str, Any]] = {"a": {}}


def passed(answer: httpx.Response) -> dict[str, list[str]]:
    """The headers that the server got."""
    headers: dict[str, list[str]] = {}
    for name, value in answer.json()["headers"]:
        headers.setdefault(name.lower(), []).append(value)
    return headers


async def test_bytes_of_bodies_and_answers_are_not_changed(opened: Open) -> None:
    async with opened(ONE) as door:
        body = json.dumps({"text": "é\u2028 \\ 𝄞", "model": "a"}, ensure_ascii=False).encode() + b" \n"
        answer = await door.client.post("/echo/%7Ex?q=a%20b&q=1", content=body, headers={b"X-Odd": b"\xc3\xa9"})
        assert answer.json()["body"].encode("latin-1") == body
        assert answer.json()["line"] == "POST /echo/~x?q=a%20b&q=1 HTTP/1.1"
        assert passed(answer)["x-odd"] == ["\u00c3\u00a9"]  # the same two bytes
        blob = await door.client.post("/blob", json={})
        assert blob.content == BLOB
        assert (blob.headers["x-own"], blob.headers["content-type"]) == ("kept", "application/octet-stream")
        assert len(blob.headers.get_list("date")) == 1


async def test_nobody_can_say_who_he_is_to_a_server_but_the_gateway(opened: Open) -> None:
    limits = KeyLimits(concurrent=3)
    async with opened(ONE, keys=[ApiKey("secret", "alice", 2.0, limits)]) as door:
        forged = {
            "Authorization": "Bearer secret",
            "X-Api-Key": "secret",
            "X-Numaserve-Client": '{"name":"root"}',
            "Connection": "X-Dropped, keep-alive",
            "X-Dropped": "1",
            "Proxy-Authorization": "x",
            "Origin": "http://elsewhere",
            "Expect": "100-continue",
        }
        answer = await door.client.post("/echo", content=b"{}", headers=forged)
        headers = passed(answer)
        told = msgspec.json.decode(headers.pop("x-numaserve-client")[0], type=PassedClient)
        assert (told.key, told.weight, told.limits, len(told.name), len(told.owner)) == ("alice", 2.0, limits, 16, 64)
        assert headers["x-request-id"] == [answer.headers["x-request-id"]]
        assert headers.keys() & {name.lower() for name in forged} == set()
        assert headers["content-length"] == ["2"]
        assert (await door.client.post("/echo", content=b"{}")).status_code == 401
        again = {**forged, "X-Api-Key": "secrets"}
        assert (await door.client.post("/echo", content=b"{}", headers=again)).status_code == 401


async def test_the_page_is_open_to_those_who_read_it_and_loads_no_model(opened: Open) -> None:
    async with opened({"a": {"load": "request"}}, keys=[ApiKey("secret", "alice")]) as door:
        for path, file in ui_files().items():
            answer = await door.client.request("GET", path, json={"model": "a"})
            assert (answer.status_code, answer.content) == (200, file.content)
            assert "script-src 'self'" in answer.headers["content-security-policy"]
            assert (await door.client.post(path, json={"model": "a"})).status_code == 401
            with_key = {"Authorization": "Bearer secret"}
            refused = await door.client.post(path, json={"model": "a"}, headers=with_key)
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
        assert door.fleet.state("a") == "unloaded"
    async with opened({"a": {"load": "request"}}, ui=False) as door:
        assert (await door.client.get("/openapi.json")).status_code == 503  # nobody describes a model's routes
        assert (await door.client.get("/ui")).status_code == 404
        assert (await door.client.get("/", headers={"Accept": "text/html"})).status_code == 404
        assert (await door.client.get("/")).status_code == 200


async def test_clients_of_other_apis_find_what_they_look_for(opened: Open) -> None:
    async with opened({"a": {"load": "request"}}, keys=[ApiKey("secret", "alice")]) as door:
        assert (await door.client.get("/")).text == "Ollama is running"
        page = await door.client.get("/", headers={"Accept": "text/html"}, follow_redirects=True)
        assert (page.status_code, page.url.path, page.content) == (200, "/ui", ui_files()["/ui"].content)
        headers = {"Authorization": "Bearer secret", "anthropic-version": "2023-06-01"}
        assert (await door.client.get("/api/version", headers=headers)).json() == {"version": OLLAMA_VERSION}
        listed = (await door.client.get("/v1/models", headers=headers)).json()
        assert [(model["type"], model["id"]) for model in listed["data"]] == [("model", "a")]
        assert (await door.client.get("/v1/models/a", headers=headers)).json() == listed["data"][0]
        assert door.fleet.state("a") == "unloaded"


@pytest.mark.parametrize(("is_local", "rights"), [(False, ""), (True, ',"admin":true')])
async def test_without_keys_a_server_hears_the_address_and_the_rights(
    opened: Open, is_local: bool, rights: str
) -> None:
    async with opened(ONE, is_local=is_local) as door:
        headers = passed(await door.client.post("/echo", content=b"{}", headers={"X-Numaserve-Client": "x"}))
        assert headers["x-numaserve-client"] == [f'{{"name":"127.0.0.1","weight":1.0{rights}}}']


@pytest.mark.parametrize("path", ["/%ff", "/v1/responses/%ff", "/v1/chat/completions/%c3", "/v1/models/%ed%a0%80"])
@pytest.mark.parametrize("body", [{}, {"json": {"model": "a"}}], ids=["no body", "body"])
async def test_a_path_that_is_no_text_is_unknown_whether_or_not_a_model_is_loaded(
    path: str, body: dict[str, Any], opened: Open
) -> None:
    async with opened({"a": {"load": "request"}}) as door:
        answer = await door.client.request("POST" if body and "models" not in path else "GET", path, **body)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] in {"unknown_url", "model_not_found"}
        assert door.fleet.state("a") == "unloaded"


async def test_a_request_without_a_body_names_its_model_in_the_query_and_loads_none(opened: Open) -> None:
    async with opened({"a": {}, "b": {}, "c": {"load": "request"}}) as door:
        await door.until(lambda: door.fleet.is_ready() and len(door.fleet.open_sessions()) == 2)
        assert (await door.client.get("/echo")).json()["by"] == "a"
        assert (await door.client.get("/echo?model=b")).json()["by"] == "b"
        assert (await door.client.get("/echo?model=c")).status_code == 503
        assert (await door.client.get("/echo?model=../a")).status_code == 404
        assert door.fleet.state("c") == "unloaded"


@pytest.mark.parametrize("inline", [gateway.INLINE_BYTES, 0])
async def test_the_model_is_found_in_bodies_of_any_length(
    opened: Open, monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    monkeypatch.setattr(gateway, "INLINE_BYTES", inline)
    async with opened({"a": {}, "b": {}}) as door:
        for body, status in {
            '{"mode": 1, "model": "b"}': 200,
            '{"model": "c"}': 404,
            '{"model": 1}': 400,
            "[]": 400,
            '{"model": "b"': 400,
            "[" * 100_000: 400,
            "\x00": 400,
        }.items():
            answer = await door.client.post("/echo", content=body.encode())
            assert answer.status_code == status, answer.text
            assert status != 200 or answer.json()["by"] == "b"


async def test_a_body_beyond_the_limit_is_refused_before_it_is_kept(opened: Open) -> None:
    async with opened(ONE) as door:
        reader, writer = await asyncio.open_connection(*door.address)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 33554433\r\n\r\n{")
        assert b" 413 " in await reader.readline()
        writer.close()


async def test_each_surface_has_errors_of_its_own_form(opened: Open) -> None:
    async with opened(ONE) as door:
        for path in ("/v1/chat/completions", "/v1/messages", "/api/chat", "/v2/rerank", "/rerank"):
            answer = await door.client.post(path, json={"model": "x"})
            assert answer.status_code == 404
            assert error_message(answer) == (
                "The model 'x' does not exist. The server has 'a'; GET /v1/models lists all."
            )
        assert isinstance((await door.client.post("/api/chat", json={"model": "x"})).json()["error"], str)


async def test_a_gateway_that_drains_says_when_to_try_again(opened: Open) -> None:
    async with opened(ONE) as door:
        await door.until(door.fleet.is_ready)
        await door.fleet.stop()
        answer = await door.client.post("/v1/completions", json={})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert (await door.client.get("/readyz")).headers["retry-after"] == "5"


async def test_a_client_that_leaves_ends_its_request_at_the_server(opened: Open) -> None:
    async with opened(ONE) as door:
        async with door.client.stream("POST", "/endless", json={}) as stream:
            await anext(stream.aiter_lines())
        await door.until(lambda: "a left" in door.noted())
        await door.until(lambda: door.fleet._residency.requests("a") == 0)


async def test_a_client_that_does_not_read_makes_the_server_wait(opened: Open) -> None:
    async with opened(ONE) as door:
        sent = door.notes.with_suffix(".sent")

        def progress() -> int:
            return int(sent.read_text() or 0) if sent.exists() else 0

        async with door.client.stream("POST", "/torrent", json={}) as stream:
            await door.until(lambda: progress() > 0)
            before = -1
            while before != progress():
                before = progress()
                await asyncio.sleep(0.3)
            assert before < 64 << 20  # what sockets and buffers hold
            read = 0
            async for piece in stream.aiter_raw():
                read += len(piece)
                if read > before:
                    break
            await door.until(lambda: progress() > before)


async def test_a_server_that_dies_is_told_in_the_form_that_its_request_allows(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RestartPolicy, "failed", lambda *_, **__: False)
    lives: list[str] = []
    async with opened(ONE) as door:

        async def dies(path: str, **query: Any) -> httpx.Response:
            lives.append(path)
            await door.until(lambda: len(started(door, "a")) == len(lives) and door.fleet.is_ready())
            return await door.client.post(path, json=query)

        answer = await dies("/die")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        with pytest.raises(httpx.RemoteProtocolError):
            await dies("/die-inside")
        with pytest.raises(httpx.RemoteProtocolError):
            await dies("/die-between")  # of no surface: in which form?


async def test_a_client_that_reads_slowly_hears_that_its_server_has_died(opened: Open) -> None:
    async with opened(ONE) as door, door.client.stream("POST", "/torrent", json={}) as stream:
        pieces = stream.aiter_raw()
        await anext(pieces)
        await door.until(lambda: door.notes.with_suffix(".sent").exists())
        kill(door, "a")
        await door.until(lambda: len(started(door, "a")) == 2 and door.fleet.is_ready())
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in pieces:
                pass


async def test_few_connections_stay_open_after_many_requests(opened: Open) -> None:
    async with opened({"a": {"load": "request", "how": "late"}}) as door:
        # They wait together for the model, and have it together.
        asked = [asyncio.create_task(door.client.post("/echo", json={"index": index})) for index in range(60)]
        await door.until(lambda: door.fleet.waiting("a") == 60)
        door.notes.with_suffix(".ready").touch()
        answers = await asyncio.gather(*asked)
        assert [json.loads(answer.json()["body"])["index"] for answer in answers] == list(range(60))
        assert any(passed(answer).get("connection") == ["close"] for answer in answers)
        (session,) = door.fleet.open_sessions().values()
        kept = [each for pool in session.connector._conns.values() for each, _ in pool]  # type: ignore[union-attr]
        await door.until(lambda: sum(each.is_connected() for each in kept) <= IDLE_CONNECTIONS)
        assert "connection" not in passed(await door.client.post("/echo", json={}))


async def test_metrics_of_all_models_are_one_text(opened: Open) -> None:
    async with opened({"a": {}, "b": {}, "c": {"load": "request"}}) as door:
        await door.until(lambda: len(door.fleet.open_sessions()) == 2)
        assert (await door.client.post("/echo", json={"model": "d"})).status_code == 404
        text = (await door.client.get("/metrics")).text
        assert text.count("# TYPE x gauge") == 1
        for line in (
            'x{model_name="a"} 1',
            'x{model_name="b"} 1',
            'numaserve_model_state{model_name="c",state="unloaded"} 1.0',
            'numaserve_model_state{model_name="a",state="ready"} 1.0',
            'numaserve_model_load_seconds_count{model_name="b"} 1.0',
            'numaserve_front_door_refusals_total{reason="invalid"} 1.0',
        ):
            assert line in text.splitlines()


async def refused_orders(door: Opened, **headers: str) -> list[int]:
    paths = ("/models/load", "/models/unload")
    return [(await door.client.post(path, json={"model": "a"}, headers=headers)).status_code for path in paths]


async def test_orders_take_an_admin_key_or_a_server_that_nobody_else_reaches(opened: Open) -> None:
    keys = [ApiKey("user"), ApiKey("root", admin=True)]
    async with opened(ONE, keys=keys) as door:
        assert await refused_orders(door) == [401, 401]
        assert await refused_orders(door, Authorization="Bearer user") == [403, 403]
        assert await refused_orders(door, Authorization="Bearer root") == [200, 200]
    async with opened(ONE, is_local=False) as door:
        assert await refused_orders(door) == [403, 403]


async def test_an_order_names_a_model_of_the_file_and_nothing_else(opened: Open) -> None:
    async with opened(ONE) as door:
        for body, status in {
            '{"model": "a"}': 200,
            '{"model": "b"}': 404,
            '{"model": "/etc/passwd"}': 404,
            '{"model": "a", "path": "/m"}': 400,
            "{}": 400,
            "{": 400,
        }.items():
            for path in ("/models/load", "/models/unload"):
                assert (await door.client.post(path, content=body.encode())).status_code == status
        assert (await door.client.get("/models/load")).headers["allow"] == "POST"


async def test_each_line_of_the_log_has_the_route_and_the_model(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="numaserve.request")
    with_key = {"Authorization": "Bearer secret"}
    async with opened({"a": {}, "b": {}}, keys=[ApiKey("secret", "alice", admin=True)]) as door:
        await door.until(door.fleet.is_ready)

        async def fields(method: str, path: str, body: object = None, **headers: str) -> list[object]:
            """Status, route and model in the line of a request."""
            before = len(caplog.records)
            await door.client.request(method, path, json=body, headers=headers)
            await door.until(lambda: len(caplog.records) > before)  # the line follows the answer
            told = caplog.records[-1].__dict__["fields"]
            return [told["status"], told["route"], told.get("model")]

        chat = "/v1/chat/completions"
        assert await fields("POST", chat, {"model": "b"}, **with_key) == [404, chat, "b"]  # which the stand-in has not
        assert await fields("POST", chat, {}, **with_key) == [404, chat, "a"]
        assert await fields("POST", chat, {"model": "b"}) == [401, chat, None]
        assert await fields("POST", chat, {"model": "c"}, **with_key) == [404, chat, None]
        assert await fields("GET", "/v1/models/b", **with_key) == [200, "/v1/models/{name:path}", "b"]
        assert await fields("GET", "/v1/models/c/FAKE%20LINE", **with_key) == [404, "/v1/models/{name:path}", None]
        assert await fields("POST", "/models/unload", {"model": "b"}, **with_key) == [200, "/models/unload", "b"]
        assert await fields("GET", "/server_info?model=b", **with_key) == [503, "/server_info", "b"]
        assert await fields("POST", "/echo", {"model": "a"}, **with_key) == [200, "unmatched", "a"]
