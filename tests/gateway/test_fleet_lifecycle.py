"""Models loaded, unloaded, restarted and given up, over processes that are stand-ins for their servers."""

import asyncio
import socket
import time
from typing import Any

import httpx
import pytest
from numaserve.server.gateway.models import fleet as fleet_module
from numaserve.server.gateway.models import waiting
from numaserve.server.gateway.models.process import ModelProcess
from numaserve.server.gateway.models.resident import Resident
from numaserve.server.http.auth.key_file import ApiKey
from open_gateway import Open, Opened, kill, started


async def echoed(door: Opened, name: str) -> httpx.Response:
    return await door.client.post("/echo", json={"model": name})


async def test_a_model_is_loaded_by_the_first_request_that_names_it(opened: Open) -> None:
    async with opened({"a": {}, "b": {"load": "request"}}) as door:
        await door.until(door.fleet.is_ready)
        assert door.fleet.state("b") == "unloaded"
        answers = await asyncio.gather(*(echoed(door, "b") for _ in range(20)))
        assert {answer.json()["by"] for answer in answers} == {"b"}
        assert len(started(door, "b")) == 1


async def test_a_model_takes_the_place_of_the_one_on_its_cores(opened: Open) -> None:
    async with opened({"a": {"core": 0}, "b": {"core": 0, "load": "request"}}) as door:
        for name in "abab":
            assert (await echoed(door, name)).json()["by"] == name
        assert [line.split()[:2] for line in door.noted()] == [
            *(["a", "starts"], ["a", "stops"], ["b", "starts"], ["b", "stops"]),
            *(["a", "starts"], ["a", "stops"], ["b", "starts"]),
        ]


async def test_a_stream_is_finished_before_its_model_goes(opened: Open) -> None:
    async with opened({"a": {"core": 0}, "b": {"core": 0, "load": "request"}}) as door:
        async with door.client.stream("POST", "/endless", json={"model": "a"}) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            other = asyncio.create_task(echoed(door, "b"))
            unloading = asyncio.create_task(door.fleet.unload("a"))
            await door.until(lambda: door.fleet.state("a") == "draining")
            again = asyncio.create_task(echoed(door, "a"))
            await anext(lines)
            assert "a stops" not in door.noted()
        assert await unloading == "unloaded"
        assert (await other).json()["by"] == "b"
        assert (await again).json()["by"] == "a"


async def test_requests_that_wait_are_bounded_in_number_and_bytes(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MAX_WAITING", 2)
    monkeypatch.setattr(waiting, "MAX_BYTES", 1000)
    async with opened({"a": {"how": "never"}}, load_wait_s=3600) as door:
        held = [asyncio.create_task(echoed(door, "a"))]
        await door.until(lambda: door.fleet.waiting("a") == 1)
        large = await door.client.post("/echo", json={"model": "a", "text": "x" * 1000})
        assert (large.status_code, large.headers["retry-after"]) == (429, "1")
        held.append(asyncio.create_task(echoed(door, "a")))
        await door.until(lambda: door.fleet.waiting("a") == 2)
        assert (await echoed(door, "a")).status_code == 429
        held[0].cancel()  # its client leaves
        await door.until(lambda: door.fleet.waiting("a") == 1)
        await door.fleet.stop()
        assert (await held[1]).status_code == 503


async def test_one_client_s_requests_leave_room_for_another_s(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_WAITING", 2)
    keys = [ApiKey("one", "one"), ApiKey("other", "other")]
    async with opened({"a": {"how": "never"}}, keys=keys, load_wait_s=3600) as door:

        def asked(key: str) -> asyncio.Task[httpx.Response]:
            headers = {"Authorization": f"Bearer {key}"}
            return asyncio.create_task(door.client.post("/echo", json={"model": "a"}, headers=headers))

        held = [asked("one") for _ in range(2)]
        await door.until(lambda: door.fleet.waiting("a") == 2)
        assert (await asked("one")).status_code == 429
        held.append(asked("other"))
        await door.until(lambda: door.fleet.waiting("a") == 3)
        assert (await asked("other")).status_code == 429
        await door.fleet.stop()
        assert {answer.status_code for answer in await asyncio.gather(*held)} == {503}


async def test_a_request_waits_for_its_model_only_so_long(opened: Open) -> None:
    async with opened({"a": {"how": "never"}}, load_wait_s=0.05) as door:
        answer = await echoed(door, "a")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert door.fleet.state("a") == "loading"
        assert (await door.client.get("/readyz")).status_code == 503
        assert (await door.client.post("/models/unload", json={"model": "a"})).json()["state"] == "unloaded"
        assert (await door.client.get("/readyz")).status_code == 200


async def test_requests_that_wait_for_a_model_that_is_unloaded_by_order_have_it_loaded_again(opened: Open) -> None:
    async with opened({"a": {"how": "again"}}) as door:
        before = [asyncio.create_task(echoed(door, "a")) for _ in range(3)]
        await door.until(lambda: door.fleet.waiting("a") == 3)
        ordered = asyncio.create_task(door.fleet.unload("a"))
        await asyncio.sleep(0)
        assert door.fleet.state("a") == "draining"
        answers = await asyncio.gather(*before, echoed(door, "a"))
        assert {answer.status_code for answer in answers} == {200}
        assert await ordered != "draining"
        assert [line.split()[1] for line in door.noted()] == ["starts", "stops", "starts"]


async def test_a_model_that_is_unloaded_by_order_stays_so_when_those_who_waited_have_left(opened: Open) -> None:
    async with opened({"a": {"how": "lingers"}}, load_wait_s=3600) as door:
        held = asyncio.create_task(echoed(door, "a"))
        await door.until(lambda: door.fleet.waiting("a") == 1)
        ordered = asyncio.create_task(door.fleet.unload("a"))
        await asyncio.sleep(0)
        assert door.fleet.state("a") == "draining"
        held.cancel()
        await door.until(lambda: door.fleet.waiting("a") == 0)
        door.notes.with_suffix(".end").touch()
        assert await ordered == "unloaded"
        assert len(started(door, "a")) == 1


async def test_the_time_of_a_request_counts_while_it_waits(opened: Open) -> None:
    async with opened({"a": {}, "b": {"how": "never", "load": "request"}}, load_wait_s=3600) as door:
        late = await door.client.post("/echo", json={"model": "b"}, headers={"X-Request-Timeout": "0.05"})
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        answer = await door.client.post("/echo", json={"model": "a"}, headers={"X-Request-Timeout": "500"})
        (left,) = (value for name, value in answer.json()["headers"] if name.lower() == "x-request-timeout")
        assert 0 < float(left) <= 500
        assert left != "500"  # it is what is left when the request goes on
        assert (await door.client.post("/echo", json={}, headers={"X-Request-Timeout": "x"})).status_code == 400


async def test_an_order_to_load_that_is_taken_back_is_answered(opened: Open) -> None:
    async with opened({"a": {"how": "never", "load": "request"}}) as door:
        loading = asyncio.create_task(door.client.post("/models/load", json={"model": "a"}))
        await door.until(lambda: door.fleet.state("a") == "loading")
        assert await door.fleet.unload("a") == "unloaded"
        assert (await loading).json()["error"]["code"] == "load_failed"


async def test_a_mistake_is_not_tried_again_until_somebody_orders_it(opened: Open) -> None:
    async with opened({"a": {}, "b": {"how": "mistake", "load": "request"}}) as door:
        for _ in range(2):
            answer = await echoed(door, "b")
            assert (answer.status_code, "log" in answer.json()["error"]["message"]) == (503, True)
        assert len(started(door, "b")) == 1
        ordered = await door.client.post("/models/load", json={"model": "b"})
        assert (ordered.status_code, ordered.json()["error"]["code"]) == (503, "load_failed")
        assert len(started(door, "b")) == 2
        assert (await echoed(door, "a")).status_code == 200


async def killed_when_ready(door: Opened, *, servers: int) -> None:
    """Kill the server of `a`, and wait until there have been so many of it."""
    await door.until(door.fleet.is_ready)
    kill(door, "a")
    await door.until(lambda: len(started(door, "a")) == servers)


async def test_a_mistake_of_a_server_that_was_ready_before_is_tried_again(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numaserve.server.supervisor.policy._FIRST_PAUSE_S", 0.01)
    async with opened({"a": {"how": "relapses"}}) as door:
        await killed_when_ready(door, servers=3)
        assert (await echoed(door, "a")).status_code == 200
        assert door.fleet.exit_status("a") == 2


@pytest.mark.parametrize("unloaded", [False, True])
async def test_nothing_takes_the_place_of_a_server_whose_workers_still_end(opened: Open, unloaded: bool) -> None:
    async with opened({"a": {"how": "parent", "core": 0}, "b": {"load": "request", "core": 0}}) as door:
        await door.until(door.fleet.is_ready)
        if unloaded:
            order = asyncio.create_task(door.fleet.unload("a"))
        else:
            kill(door, "a")
            await door.until(lambda: door.fleet.state("a") == "loading")
        waits = asyncio.create_task(echoed(door, "b" if unloaded else "a"))
        await door.until(lambda: door.fleet.waiting("b" if unloaded else "a") == 1)
        await asyncio.sleep(0.1)
        assert door.fleet.state("a") == ("draining" if unloaded else "loading")
        assert len(started(door, "a")) == 1
        assert not started(door, "b")
        door.notes.with_suffix(".end").touch()
        assert (await waits).status_code == 200
        assert not unloaded or await order == "unloaded"


async def test_workers_that_do_not_end_are_waited_for_only_so_long(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numaserve.server.gateway.models.process._LEFTOVERS_S", 0.05)
    async with opened({"a": {"how": "parent"}}) as door:
        await killed_when_ready(door, servers=2)
        door.notes.with_suffix(".end").touch()


async def test_a_server_that_does_not_start_is_tried_three_times(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numaserve.server.supervisor.policy._FIRST_PAUSE_S", 0.01)
    async with opened({"a": {"how": "fails"}}) as door:
        assert (await echoed(door, "a")).status_code == 503
        assert (door.fleet.state("a"), len(started(door, "a")), door.fleet.exit_status("a")) == ("failed", 3, 1)


async def test_a_server_whose_process_cannot_be_made_is_tried_again(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = fleet_module.ModelProcess, [OSError("no descriptor"), OSError("no memory")]

    def make(*arguments: Any) -> ModelProcess:
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr("numaserve.server.supervisor.policy._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(fleet_module, "ModelProcess", make)
    async with opened({"a": {}}) as door:
        assert (await echoed(door, "a")).status_code == 200
        failures.append(OSError("no process"))
        assert await door.fleet.unload("a") == "unloaded"
        order = asyncio.create_task(door.fleet.load("a"))
        await asyncio.sleep(0)
        assert await door.fleet.unload("a") == "unloaded"
        assert await order == "unloaded"
        await asyncio.sleep(0.05)
        assert door.fleet.state("a") == "unloaded"


@pytest.mark.parametrize("state", ["loading", "ready", "draining"])
async def test_a_server_that_is_killed_is_started_again_unless_it_was_to_end(opened: Open, state: str) -> None:
    async with opened({"a": {"how": "never" if state == "loading" else "ready"}}, load_wait_s=3600) as door:
        await door.until(lambda: len(started(door, "a")) == 1 and (state == "loading" or door.fleet.is_ready()))
        held = asyncio.create_task(door.client.post("/endless", json={}))
        if state == "draining":
            await door.until(lambda: door.fleet._residency.requests("a") == 1)
            unloading = asyncio.create_task(door.fleet.unload("a"))
            await door.until(lambda: door.fleet.state("a") == "draining")
        kill(door, "a")
        if state == "draining":
            assert await unloading == "unloaded"
            assert len(started(door, "a")) == 1
        else:
            await door.until(lambda: len(started(door, "a")) == 2)
        held.cancel()
        await asyncio.wait([held])


async def test_a_server_that_does_not_end_is_killed(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "_KILL_S", 0.1)
    async with opened({"a": {"how": "deaf"}}, drain_seconds=0.05) as door:
        await door.until(door.fleet.is_ready)
        assert await door.fleet.unload("a") == "unloaded"


async def test_an_idle_model_is_unloaded_and_comes_back(opened: Open) -> None:
    async with opened({"a": {"idle_unload_s": 0.05}}) as door:
        assert (await echoed(door, "a")).status_code == 200
        await door.until(lambda: door.fleet.state("a") == "unloaded")
        assert (await door.client.get("/readyz")).status_code == 200
        assert (await echoed(door, "a")).status_code == 200


async def test_only_so_many_are_loaded_at_once(opened: Open) -> None:
    models = {name: {"load": "request"} for name in "abc"}
    async with opened(models, max_loaded=2) as door:
        for name in "abac":
            await echoed(door, name)
        assert [door.fleet.state(name) for name in "abc"] == ["ready", "unloaded", "ready"]


async def test_a_server_that_tells_no_life_is_killed(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Resident, "watchdog_s", 0.05)
    async with opened({"a": {}}) as door:
        await door.until(lambda: len(started(door, "a")) > 1)


async def test_a_gateway_that_was_absent_reads_what_servers_have_told_before_it_judges(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Resident, "watchdog_s", 0.05)
    async with opened({"a": {"load": "request"}}) as door:
        hear, signals, absences = ModelProcess._hear, list[int](), list[float]()

        def hear_and_be_absent(process: ModelProcess) -> None:
            """The server is ready, and ends by itself while nobody is there."""
            hear(process)
            if absences:
                return
            absences.append(1.0)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
                server.sendto(b"STOPPING=1", str(process.path.with_suffix(".notify")))
            time.sleep(absences[0])

        with monkeypatch.context() as patch:
            patch.setattr(ModelProcess, "_hear", hear_and_be_absent)
            patch.setattr(ModelProcess, "signal", lambda _, number: signals.append(number))
            assert (await echoed(door, "a")).json()["by"] == "a"
            await asyncio.sleep(0.5)
            assert absences
            assert signals == []
