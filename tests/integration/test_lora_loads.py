"""LoRA adapters that are loaded and unloaded while workers run, refuse and die."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_worker import expected_tokens
from harness import GREEDY, Options, Server, pids_of, running_engine, serving, until
from numaserve.server.adapters.adapters import Adapters
from numaserve.server.config.lora_modules import LoraModule
from numaserve.server.supervisor.group import GroupFailed

from tests.support.adapters import describe

PROMPT = list(range(20, 120))
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


def options(root: Path, *, places: int = 3, faults: tuple[str, ...] = (), start: tuple[str, ...] = ()) -> Options:
    """Two ranks with memory for adapters, which lie in `root`; rank 1 commits the faults that paths name."""
    for name in ("alpha", "beta", "gamma", "refused", "dies", "gone"):
        (root / name).mkdir(exist_ok=True)
    adapters = Adapters(places, describe, reserved=["fake"])
    adapters.name_at_start([LoraModule(name, root / name) for name in start])
    return Options(ranks=2, faults=["--fault-rank", "1", *faults], adapters=adapters, lora_root=root)


def loaded(chosen: Options) -> Collection[str]:
    """The names of the adapters that requests find."""
    assert chosen.adapters is not None
    return chosen.adapters.loaded.keys()


def words(content: str | None, count: int) -> str:
    digest = "" if content is None else describe(Path(content)).digest
    return "".join(f"w{token} " for token in expected_tokens(PROMPT, GREEDY, count, adapter=digest))


async def load(server: Server, name: str, path: str | None = None, **more: Any) -> httpx.Response:
    return await server.client.post(LOAD, json={"lora_name": name, "lora_path": path or name, **more})


async def unload(server: Server, name: str) -> httpx.Response:
    return await server.client.post(UNLOAD, json={"lora_name": name})


async def answered(server: Server, model: str, count: int = 8) -> httpx.Response:
    return await server.complete(model=model, prompt=PROMPT, max_tokens=count)


async def text_of(server: Server, model: str, count: int = 8) -> tuple[str, int]:
    answer = (await answered(server, model, count)).json()
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


async def names(server: Server) -> set[str]:
    return {each["id"] for each in (await server.client.get("/v1/models")).json()["data"]}


async def test_each_adapter_answers_alone_and_a_reload_finds_nothing_cached(tmp_path: Path) -> None:
    async with serving(options(tmp_path, start=("alpha",))) as server:
        assert (await load(server, "beta")).headers["x-numaserve-matrices"] == "7"
        for _ in range(2):
            found = [await text_of(server, model) for model in ("fake", "alpha", "beta")]
            assert [text for text, _ in found] == [words(each, 8) for each in (None, "alpha", "beta")]
        assert {cached for _, cached in found} == {96}  # each finds its own pages alone
        assert (await load(server, "beta", "gamma", load_inplace=True)).status_code == 200
        assert await text_of(server, "beta") == (words("gamma", 8), 0)
        assert await text_of(server, "fake") == (words(None, 8), 96)


async def test_a_full_server_replaces_an_adapter_once_its_requests_have_ended(tmp_path: Path) -> None:
    chosen = options(tmp_path, places=1, start=("alpha",), faults=("--step-ms", "10"))
    async with serving(chosen) as server:
        running = asyncio.create_task(answered(server, "alpha", 200))
        await until(lambda: server.metric("requests", state="running") == 1)
        swapped = asyncio.create_task(load(server, "alpha", "beta", load_inplace=True))
        await until(lambda: "alpha" not in loaded(chosen))
        assert (await answered(server, "alpha")).status_code == 503
        assert not swapped.done()
        assert (await running).json()["choices"][0]["text"] == words("alpha", 200)
        assert (await swapped).status_code == 200
        assert await text_of(server, "alpha") == (words("beta", 8), 0)


async def test_an_unload_waits_for_its_requests_and_admits_no_more(tmp_path: Path) -> None:
    chosen = options(tmp_path, places=1, start=("alpha",), faults=("--step-ms", "10"))
    async with serving(chosen) as server:
        running = asyncio.create_task(answered(server, "alpha", 200))
        await until(lambda: server.metric("requests", state="running") == 1)
        unloading = asyncio.create_task(unload(server, "alpha"))
        await until(lambda: "alpha" not in loaded(chosen))
        assert (await answered(server, "alpha")).status_code == 404
        assert (await load(server, "beta")).status_code == 409
        assert not unloading.done()
        assert (await running).json()["choices"][0]["text"] == words("alpha", 200)
        assert (await unloading).status_code == 200
        assert (await load(server, "beta")).status_code == 200
        assert await text_of(server, "beta") == (words("beta", 8), 0)


async def test_a_client_that_leaves_ends_no_load_and_its_request_holds_no_adapter(tmp_path: Path) -> None:
    chosen = options(tmp_path, start=("alpha",), faults=("--adapter-ms", "300"))
    async with serving(chosen) as server:
        assert chosen.adapters is not None
        leaving = asyncio.create_task(load(server, "beta"))
        await until(lambda: "beta" in chosen.adapters._registry._loading)
        leaving.cancel()
        async with server.client.stream(
            "POST", "/v1/completions", json={"model": "alpha", "prompt": PROMPT, "max_tokens": 900, "stream": True}
        ) as stream:
            await anext(stream.aiter_lines())
        assert (await unload(server, "alpha")).status_code == 200
        await until(lambda: "beta" in loaded(chosen))


async def test_a_rank_that_refuses_fails_the_load_and_not_the_server(tmp_path: Path) -> None:
    async with serving(options(tmp_path, places=1)) as server:
        for _ in range(2):
            answer = await load(server, "refused")
            assert answer.status_code == 500
            assert answer.json()["error"]["message"] == "worker 1: no memory for it"
        assert await names(server) == {"fake"}
        assert (await load(server, "alpha")).status_code == 200
        assert (await text_of(server, "alpha"))[0] == words("alpha", 8)


async def test_workers_that_die_in_a_load_fail_it_and_come_back_with_the_others(tmp_path: Path) -> None:
    async with serving(options(tmp_path, faults=("--step-ms", "5"))) as server:
        assert (await load(server, "alpha")).status_code == 200
        running = asyncio.create_task(answered(server, "alpha", 40))
        await until(lambda: server.metric("requests", state="running") == 1)
        refused = await load(server, "dies")
        assert (refused.status_code, "The workers failed" in refused.text) == (503, True)
        assert (await running).json()["choices"][0]["text"] == words("alpha", 40)
        assert await names(server) == {"fake", "alpha"}
        assert (await load(server, "beta")).status_code == 200
        assert (await text_of(server, "beta"))[0] == words("beta", 8)


async def test_an_adapter_that_new_workers_cannot_load_is_dropped_with_its_requests(tmp_path: Path) -> None:
    async with serving(options(tmp_path, places=2, faults=("--step-ms", "5"))) as server:
        for name in ("alpha", "gone"):
            assert (await load(server, name)).status_code == 200
        running = [asyncio.create_task(answered(server, name, 60)) for name in ("alpha", "gone")]
        await until(lambda: server.metric("requests", state="running") == 2)
        os.kill(pids_of(server.engine)[0], signal.SIGKILL)
        good, lost = await asyncio.gather(*running)
        assert good.json()["choices"][0]["text"] == words("alpha", 60)
        assert lost.status_code == 500
        assert "could not load the LoRA adapter 'gone': worker 1: no memory for it" in lost.text
        assert await names(server) == {"fake", "alpha"}
        assert (await answered(server, "gone")).status_code == 404
        assert (await load(server, "beta")).status_code == 200


async def test_an_adapter_that_the_first_workers_cannot_load_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(GroupFailed, match="the LoRA adapter gone: worker 1: no memory for it"):
        async with running_engine(options(tmp_path, start=("gone",))):
            pass


async def test_clients_that_race_get_no_answer_of_another_adapter(tmp_path: Path) -> None:
    seen: Counter[tuple[str, int]] = Counter()

    async def client(server: Server, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(40):
            name, turn = rng.choice(("alpha", "beta", "gamma", "refused")), rng.random()
            if turn < 0.3:
                seen["load", (await load(server, name, load_inplace=rng.random() < 0.5)).status_code] += 1
            elif turn < 0.45:
                seen["unload", (await unload(server, name)).status_code] += 1
            else:
                model, count = rng.choice((name, "fake")), rng.randrange(1, 20)
                answer = await answered(server, model, count)
                seen["answer", answer.status_code] += 1
                if answer.status_code == 200:
                    assert answer.json()["choices"][0]["text"] == words(None if model == "fake" else model, count)

    async with serving(options(tmp_path, places=2, start=("alpha",), faults=("--step-ms", "1"))) as server:
        racing = [asyncio.create_task(client(server, seed)) for seed in range(8)]
        for _ in range(2):
            await asyncio.sleep(0.5)
            await until(server.engine.is_ready)
            os.kill(pids_of(server.engine)[0], signal.SIGKILL)
        await asyncio.gather(*racing)
        await until(lambda: server.engine.server_info()["restarts"] == 2 and server.engine.is_ready())
        for name in await names(server) - {"fake"}:
            assert (await unload(server, name)).status_code == 200
        # Nothing has leaked: both places are free, and no page is in use.
        for name in ("beta", "gamma"):
            assert (await load(server, name)).status_code == 200
            assert (await text_of(server, name))[0] == words(name, 8)
        assert server.pages()["active"] == 0
    assert {status for _, status in seen} <= {200, 400, 404, 409, 500, 503}
    assert seen["answer", 500] == 0
    assert min(seen["load", 200], seen["unload", 200], seen["answer", 404]) > 0
