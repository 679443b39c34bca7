"""What is asked of the servers of all models at once."""

import asyncio

import pytest
from numaserve.server.gateway import asking
from open_gateway import Open, Opened

THREE = {"a": {}, "b": {"how": "silent"}, "c": {"how": "knowing"}, "d": {"load": "request"}}


async def until_ready(door: Opened, count: int) -> None:
    await door.until(lambda: len(door.fleet.open_sessions()) == count)


async def test_a_server_that_is_silent_keeps_nobody_from_what_another_knows(opened: Open) -> None:
    async with opened(THREE) as door:
        await until_ready(door, 3)
        for method in ("GET", "DELETE"):
            assert (await door.client.request(method, "/v1/responses/kept")).json() == {"id": "c"}
        assert door.fleet.state("d") == "unloaded"


async def test_lists_are_of_the_servers_that_answer_in_time(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ASK_S", 1.0)  # the others answer in less on a busy machine, too
    async with opened(THREE) as door:
        await until_ready(door, 3)
        assert (await door.client.get("/api/tags")).json() == {"models": ["a", "c"]}


async def test_what_none_knows_is_not_found_unless_one_has_not_answered(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ASK_S", 0.3)
    async with opened(THREE) as door:
        await until_ready(door, 3)
        assert (await door.client.get("/v1/responses/none")).status_code == 503
        await door.fleet.unload("b")
        assert (await door.client.get("/v1/responses/none")).status_code == 404
        for name in "ac":
            await door.fleet.unload(name)
        assert (await door.client.get("/v1/responses/kept")).status_code == 404
        assert (await door.client.get("/api/tags")).json() == {"models": []}


async def test_requests_are_aborted_at_all_servers(opened: Open) -> None:
    async with opened({"a": {}, "b": {}}) as door:
        await until_ready(door, 2)
        assert (await door.client.post("/abort_request", json={"abort_all": True})).json() == {"aborted": 4}
        refused = await door.client.post("/abort_request", content=b"x")
        assert (refused.status_code, refused.json()) == (400, {"error": "no body"})


async def test_nothing_is_asked_any_more_for_a_client_that_has_left(opened: Open) -> None:
    async with opened({"b": {"how": "silent"}}) as door:
        await until_ready(door, 1)
        asked = asyncio.create_task(door.client.get("/v1/responses/kept"))
        await door.until(lambda: "b asked /v1/responses/kept" in door.noted())
        asked.cancel()
        await door.until(lambda: "b left" in door.noted())
