"""LoRA adapters that are loaded and unloaded while workers run, refuse and die."""

import asyncio
import os
import signal
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
    for name in ("alpha", "beta", "gamma", "refused", "gone"):
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


async def test_a_rank_that_refuses_fails_the_load_and_not_the_server(tmp_path: Path) -> None:
    async with serving(options(tmp_path, places=1)) as server:
        for _ in range(2):
            answer = await load(server, "refused")
            assert answer.status_code == 500
            assert answer.json()["error"]["message"] == "worker 1: no memory for it"
        assert await names(server) == {"fake"}
        assert (await load(server, "alpha")).status_code == 200
        assert (await text_of(server, "alpha"))[0] == words("alpha", 8)


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
