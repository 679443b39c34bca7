"""Requests with more prompts than the queue takes: whole or not at all, and in turns."""

import asyncio
from collections.abc import Sequence

import pytest
from numaserve.server.engine.admission.backlog import Backlog, Work
from numaserve.server.engine.admission.places import MAX_PLACES, TURNS, Place, Places
from numaserve.server.engine.admission.reserve import reserve_of
from numaserve.server.engine.requests.stream import Stream
from numaserve.server.engine.types import QueueFull, RequestTimedOut
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.request import Request
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.workers.interface.protocol import SamplingParams

from tests.support.plan_limits import plan_limits

ONE, OTHER = Client("one"), Client("other")


class Room:
    """Places, and how many prompts were admitted through them."""

    def __init__(self, max_queued_s: float = 600.0) -> None:
        self.backlog = Backlog(Scheduler(plan_limits(num_pages=64, context_length=64, max_slots=2)))
        self.places = Places(self.backlog, max_queued_s)
        self.admitted = 0

    def enter(self, client: Client = ONE) -> Place:
        return self.places.enter(client, self._admit, 0.0)

    def is_full_for(self, client: Client) -> bool:
        try:
            self.enter(client)
        except QueueFull:
            return True
        return False

    def _admit(self, requests: Sequence[Request]) -> Stream:
        self.admitted += len(requests)
        return Stream(len(requests), on_close=lambda: None)


def prompts(count: int) -> list[Request]:
    return [Request("", [1], SamplingParams(), 0)] * count


def test_places_have_an_end_and_a_reserve_for_clients_without_one() -> None:
    room = Room()
    held = [room.enter() for _ in range(MAX_PLACES)]
    assert room.is_full_for(ONE)
    newcomers = [room.is_full_for(Client(str(number))) for number in range(reserve_of(MAX_PLACES) + 1)]
    assert newcomers == [False] * reserve_of(MAX_PLACES) + [True]
    for place in held[: reserve_of(MAX_PLACES) + 1]:
        place.leave()
        place.leave()
    assert not room.is_full_for(ONE)
    assert room.is_full_for(ONE)


async def test_a_place_is_enough_however_full_the_queue_becomes() -> None:
    room = Room(max_queued_s=100.0)
    place = room.enter()
    place.expect([1] * 4)
    room.backlog.seconds = 1000.0
    assert room.is_full_for(OTHER)
    for _ in range(2):
        async with place.turn(None):
            place.admit(prompts(2))
    assert room.admitted == 4


def test_prompts_that_are_not_admitted_yet_count_as_work() -> None:
    room = Room(max_queued_s=100.0)
    place = room.enter()
    place.work, place._prompts = Work(1000, 120.0), 4
    with pytest.raises(QueueFull, match=r"predicted work of the waiting inputs is 120 s \(limit 100 s\)"):
        room.enter(OTHER)
    place.admit(prompts(1))
    assert place.work == Work(750, 90.0)
    assert not room.is_full_for(OTHER)


async def test_clients_take_turns_whatever_number_of_places_they_have() -> None:
    room, order = Room(), list[str]()

    async def run(client: Client) -> None:
        place = room.enter(client)
        for _ in range(2):
            async with place.turn(None):
                order.append(client.name)
                await asyncio.sleep(0)

    await asyncio.gather(*(run(ONE) for _ in range(6)), run(OTHER))
    assert len(order) == 14
    assert order.index("other") <= TURNS + 1
    assert max(at for at, name in enumerate(order) if name == "other") <= TURNS + 6


async def test_a_turn_that_comes_too_late_ends_the_request_and_frees_the_next() -> None:
    room = Room()
    async with room.enter().turn(None), room.enter().turn(None):
        for timeout_s in (0.0, -1.0):
            with pytest.raises(RequestTimedOut):
                async with room.enter().turn(timeout_s):
                    pytest.fail("there were two already")
    async with room.enter().turn(None), room.enter().turn(None):
        pass


async def test_a_server_that_drains_waits_for_places() -> None:
    room = Room()
    place = room.enter()
    waiting = asyncio.create_task(room.places.wait_until_empty())
    await asyncio.sleep(0)
    assert not waiting.done()
    place.leave()
    await waiting
