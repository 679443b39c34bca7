"""Loads and unloads of adapters at the same time, over ranks that answer when a test lets them."""

import asyncio
from pathlib import Path

import pytest
from numaserve.server.adapters import adapters as adapters_module
from numaserve.server.adapters.adapters import Adapters
from numaserve.server.adapters.errors import AdapterError
from numaserve.server.adapters.rank_loads import RankLoads
from numaserve.server.adapters.registry import RegistryHooks
from numaserve.server.config.lora_modules import LoraModule
from numaserve.server.scheduler.adapter import Adapter
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import AdapterLoaded, LoadAdapter, LoraAdapter

from tests.support.adapters import FakeRanks, describe, make_adapters

GAMMA = Path("/loras/gamma")


def kind_of(error: pytest.ExceptionInfo[AdapterError]) -> str:
    return error.value.kind


async def until_loading(ranks: FakeRanks, count: int = 1) -> None:
    async with asyncio.timeout(20):
        while len(ranks.loads) < count:
            await asyncio.sleep(0)


async def test_ranks_load_one_adapter_at_a_time_each_in_a_place_of_its_own() -> None:
    ranks = FakeRanks()
    adapters = make_adapters(8, ranks)
    loaded = await asyncio.gather(*(adapters.load(f"a{index}", GAMMA) for index in range(8)))
    assert ranks.most_at_once == 1
    assert sorted(each.number for each in loaded) == list(range(1, 9))
    assert len({each.load_id for each in loaded}) == 8
    with pytest.raises(AdapterError) as full:
        await adapters.load("more", GAMMA)
    assert kind_of(full) == "full"


async def test_one_of_several_loads_of_a_name_wins_and_the_others_are_refused_at_once() -> None:
    ranks = FakeRanks()
    ranks.go.clear()
    adapters = make_adapters(2, ranks)
    loading = asyncio.create_task(adapters.load("gamma", GAMMA))
    await until_loading(ranks)
    for call in (adapters.load("gamma", GAMMA, replace=True), adapters.unload("gamma")):
        with pytest.raises(AdapterError) as busy:
            await call
        assert kind_of(busy) == "busy"
    assert adapters.find("gamma") is None
    ranks.go.set()
    loaded = await loading
    assert adapters.find("gamma") is loaded


async def test_a_load_that_fails_frees_its_place_and_its_name() -> None:
    ranks = FakeRanks()
    adapters = make_adapters(1, ranks)
    for path, kind in (("/loras/broken", "failed"), ("/loras/bad", "invalid")):
        with pytest.raises(AdapterError) as refused:
            await adapters.load("gamma", Path(path))
        assert kind_of(refused) == kind
    assert (await adapters.load("gamma", GAMMA)).number == 1


async def test_the_place_of_an_unused_adapter_that_is_replaced_is_free_for_no_other_load() -> None:
    ranks = FakeRanks()
    adapters = make_adapters(1, ranks)
    await adapters.load("gamma", GAMMA)
    ranks.go.clear()
    replacing = asyncio.create_task(adapters.load("gamma", GAMMA, replace=True))
    await until_loading(ranks, 2)
    with pytest.raises(AdapterError) as full:
        await adapters.load("other", GAMMA)
    assert kind_of(full) == "full"
    ranks.go.set()
    assert (await replacing).number == 1


async def test_a_load_in_place_that_fails_leaves_the_adapter_where_there_is_a_free_place() -> None:
    adapters = make_adapters(2, FakeRanks(), start=["gamma"])
    before = adapters.find("gamma")
    with pytest.raises(AdapterError):
        await adapters.load("gamma", Path("/loras/broken"), replace=True)
    assert adapters.find("gamma") is before
    assert (await adapters.load("delta", GAMMA)).number == 2


async def test_a_load_in_place_without_a_free_place_says_that_the_earlier_adapter_is_gone() -> None:
    ranks = FakeRanks()
    ranks.go.clear()
    adapters = make_adapters(1, ranks, start=["gamma"])
    loading = asyncio.create_task(adapters.load("gamma", Path("/loras/broken"), replace=True))
    await until_loading(ranks)
    with pytest.raises(AdapterError, match="is being replaced") as busy:
        adapters.find("gamma")
    assert kind_of(busy) == "not_ready"
    ranks.go.set()
    with pytest.raises(AdapterError, match=r"worker 1: no memory\. The earlier adapter 'gamma' is not loaded any more"):
        await loading
    assert adapters.find("gamma") is None
    assert (await adapters.load("gamma", GAMMA)).number == 1


async def test_a_load_that_takes_too_long_goes_on_without_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters_module, "LOAD_DEADLINE_S", 0.1)
    ranks = FakeRanks()
    ranks.go.clear()
    adapters = make_adapters(1, ranks)
    with pytest.raises(AdapterError, match="continues to load") as late:
        await adapters.load("gamma", GAMMA)
    assert kind_of(late) == "not_ready"
    ranks.go.set()
    async with asyncio.timeout(20):
        while adapters.find("gamma") is None:
            await asyncio.sleep(0.01)


async def test_a_place_is_free_when_no_request_and_no_plan_in_flight_uses_it() -> None:
    planned, forgotten = True, list[Adapter]()
    hooks = RegistryHooks(planned=lambda _: planned, forgotten=forgotten.append)
    adapters = make_adapters(1, FakeRanks(), start=["gamma"], hooks=hooks)
    gamma = adapters.loaded["gamma"]
    adapters.enter(gamma)
    unloading = asyncio.create_task(adapters.unload("gamma"))
    await asyncio.sleep(0)
    assert not adapters.admits(gamma)
    adapters.leave(gamma)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not unloading.done()
    assert adapters.at_launch() == [LoraAdapter(1, "/loras/gamma", gamma.digest)]
    planned = False
    adapters.settle()
    await unloading
    assert forgotten == [gamma]
    assert adapters.at_launch() == []


async def test_requests_of_a_replaced_adapter_may_still_begin_and_later_ones_find_the_next() -> None:
    adapters = make_adapters(2, FakeRanks(), start=["gamma"])
    before = adapters.loaded["gamma"]
    adapters.enter(before)
    after = await adapters.load("gamma", GAMMA, replace=True)
    assert adapters.find("gamma") is after
    assert adapters.admits(before) and adapters.admits(after)
    assert [each.number for each in adapters.at_launch()] == [1, 2]
    adapters.leave(before)
    assert not adapters.admits(before)


def test_an_adapter_of_the_start_that_does_not_fit_is_the_operator_s_error() -> None:
    for name, path, said in (("x", "bad", "'q_proj' has rank 99"), ("tiny/bytes", "x", "name of the served model")):
        adapters = Adapters(1, describe, reserved=["tiny/bytes"])
        with pytest.raises(OperatorError, match=f"--lora {name}: .*{said}"):
            adapters.name_at_start([LoraModule(name, Path(path))])


def answer(request: LoadAdapter, rank: int, problem: str = "") -> AdapterLoaded:
    return AdapterLoaded(rank, request.request_id, 0 if problem else 5, problem)


async def test_every_rank_must_answer_the_same_load(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[LoadAdapter] = []
    ranks = RankLoads(sent.append, 2)
    with pytest.raises(AdapterError, match="is loading"):
        await ranks.load(LoraAdapter(1, "x", ""))
    ranks.up()
    for problem in ("", "no memory"):
        loading = asyncio.create_task(ranks.load(LoraAdapter(1, "x", "")))
        await asyncio.sleep(0)
        for late in (answer(sent[0], 0), answer(sent[-1], 0), answer(sent[-1], 0)):
            ranks.on_answer(late)
        await asyncio.sleep(0)
        assert not loading.done()
        ranks.on_answer(answer(sent[-1], 1, problem))
        if problem:
            with pytest.raises(AdapterError, match="worker 1: no memory"):
                await loading
        else:
            assert await loading == 5
    assert "not requested" in caplog.text
    loading = asyncio.create_task(ranks.load(LoraAdapter(1, "x", "")))
    await asyncio.sleep(0)
    ranks.down("The workers failed.")
    with pytest.raises(AdapterError, match="The workers failed"):
        await loading
