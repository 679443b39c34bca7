import asyncio

import pytest
from numaserve.server.engine.types import NotReady
from numaserve.server.engine.views.profiles import Profiles
from numaserve.workers.interface.protocol import ProfileRequest, RankProfile


def told(request: ProfileRequest, rank: int) -> RankProfile:
    return RankProfile(request.request_id, rank, 1, 1, 1, [])


async def test_who_asks_while_the_same_is_asked_gets_that_answer() -> None:
    sent: list[ProfileRequest] = []
    profiles = Profiles(sent.append, world_size=2, deadline_s=30)
    asked = [asyncio.create_task(profiles.ask(ceilings=index == 9)) for index in range(10)]
    await asyncio.sleep(0)
    assert [request.ceilings for request in sent] == [False, True]
    asked[0].cancel()  # a client that leaves
    for rank in (1, 0):
        for request in sent:
            profiles.on_answer(told(request, rank))
    for task in asked[1:9]:
        assert await task == [told(sent[0], 0), told(sent[0], 1)]
    assert await asked[9] == [told(sent[1], 0), told(sent[1], 1)]
    again = asyncio.create_task(profiles.ask(ceilings=False))
    await asyncio.sleep(0)
    assert len({request.request_id for request in sent}) == 3
    again.cancel()


async def test_answers_that_were_not_asked_for_or_come_twice_count_for_nothing() -> None:
    sent: list[ProfileRequest] = []
    profiles = Profiles(sent.append, world_size=2, deadline_s=30)
    asked = asyncio.create_task(profiles.ask(ceilings=False))
    await asyncio.sleep(0)
    profiles.on_answer(RankProfile(sent[0].request_id + 1, 1, 1, 1, 1, []))
    profiles.on_answer(told(sent[0], 0))
    profiles.on_answer(told(sent[0], 0))
    await asyncio.sleep(0)
    assert not asked.done()
    profiles.on_answer(told(sent[0], 1))
    assert await asked == [told(sent[0], 0), told(sent[0], 1)]


async def test_who_waits_for_workers_that_do_not_answer_is_told_so() -> None:
    sent: list[ProfileRequest] = []
    profiles = Profiles(sent.append, world_size=1, deadline_s=0.01)
    asked = [asyncio.create_task(profiles.ask(ceilings=False)) for _ in range(3)]
    for task in asked:
        with pytest.raises(NotReady, match=r"within 0.01 s"):
            await task
    assert len(sent) == 1


async def test_a_lost_answer_stands_in_nobodys_way_once_its_time_has_passed() -> None:
    sent: list[ProfileRequest] = []
    profiles = Profiles(sent.append, world_size=2, deadline_s=0.01)
    first = asyncio.create_task(profiles.ask(ceilings=False))
    await asyncio.sleep(0)
    profiles.on_answer(told(sent[0], 0))  # and that of rank 1 never comes
    with pytest.raises(NotReady):
        await first
    second = asyncio.create_task(profiles.ask(ceilings=False))
    await asyncio.sleep(0)
    profiles.on_answer(told(sent[0], 1))
    for rank in range(2):
        profiles.on_answer(told(sent[1], rank))
    assert await second == [told(sent[1], 0), told(sent[1], 1)]


async def test_who_waits_is_told_when_the_workers_go() -> None:
    profiles = Profiles(lambda _: None, world_size=1, deadline_s=30)
    asked = asyncio.create_task(profiles.ask(ceilings=False))
    await asyncio.sleep(0)
    profiles.fail("they are gone")
    with pytest.raises(NotReady, match="gone"):
        await asked
