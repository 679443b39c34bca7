"""Clients share slots and pages."""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numaserve.server.scheduler.client import Client
from scheduler_simulation import Request, Service
from shared_service import FLOOD, SMALL, flood, plans_until_begun, running, service, step, steps


def begun(requests: Iterable[Request], server: Service) -> list[int]:
    waiting = {int(seq.request_id) for seq in server.scheduler.waiting if not seq.has_begun}
    return [request.seed for request in requests if request.seed not in waiting]


HOLDING_EVERYTHING = {
    "ahead": st.booleans(),
    "pages": st.integers(40, 120),
    "slots": st.integers(2, 8),
    "target": st.sampled_from([None, 1e-9, 0.004]),
    "warm_up": st.integers(5, 40),
    "prompts": st.lists(st.integers(1, 60), min_size=12, max_size=24),
    "own": st.integers(1, 40),
}


def begins_within_three_steps(
    *, ahead: bool, pages: int, slots: int, target: float | None, warm_up: int, prompts: list[int], own: int
) -> None:
    server = service(ahead=ahead, num_pages=pages, max_slots=slots, context_length=100, target_itl_s=target)
    for index, length in enumerate(prompts):
        server.add([index % 3] * length, 30, salt=str(index), client=FLOOD)
    steps(server, warm_up)
    first_holds = sum(len(seq.pages) for seq in server.scheduler.running[:1])  # nobody runs when all have just ended
    fits = first_holds + own // 4 + 3 <= pages  # the flood's first sequence keeps what it has
    newcomer = server.add([2] * own, 5, client=SMALL)
    if fits:
        assert plans_until_begun(server, newcomer) <= 3
    server.drain()


@pytest.mark.parametrize("examples", [50, pytest.param(400, marks=pytest.mark.slow)])
def test_a_newcomer_begins_within_three_steps_though_one_client_holds_everything(examples: int) -> None:
    settings(max_examples=examples)(given(**HOLDING_EVERYTHING)(begins_within_three_steps))()


@pytest.mark.parametrize("ahead", [False, True])
def test_who_sends_one_request_after_the_other_never_waits_for_a_flood(ahead: bool) -> None:
    server = service(ahead=ahead)
    flood(server, 100)
    steps(server, 10)
    for _ in range(30):
        request = server.add([2] * 6, 4, client=SMALL)
        assert plans_until_begun(server, request) <= 2
        while not request.ends:
            step(server)


def test_two_floods_share_the_slots_by_their_weights() -> None:
    server = service(max_slots=9, max_logit_rows=64, max_step_tokens=64)
    flood(server, 60, Client("one"))
    steps(server, 20)
    assert running(server) == {"one": 9}
    flood(server, 60, Client("two", 2.0))
    steps(server, 20)
    assert running(server) == {"one": 3, "two": 6}
    before = server.scheduler.stats().retractions
    steps(server, 200)
    assert running(server) == {"one": 3, "two": 6}
    assert server.scheduler.stats().retractions == before  # they do not take it from each other again and again


def test_who_asks_for_long_sequences_holds_no_more_of_the_pages() -> None:
    server = service(num_pages=128, max_slots=32)
    flood(server, 40, Client("long"), prompt=120, output=100)
    flood(server, 400, Client("short"), prompt=12, output=20)
    held: Counter[str] = Counter()
    for _ in range(300):
        step(server)
        for seq in server.scheduler.running:
            held[seq.request.client.name] += len(seq.pages)
    assert 0.6 < held["long"] / held["short"] < 1.6
    server.drain(20_000)


def test_the_last_of_who_holds_most_makes_room_for_what_grows() -> None:
    server = service(num_pages=30)  # enough for the flood's first and the other client's
    many = flood(server, 5, prompt=8, output=40)
    steps(server, 20)
    single = server.add([2] * 8, 60, client=SMALL)
    lost: Counter[str] = Counter()
    while not single.ends:
        before = list(server.scheduler.running)
        step(server)
        lost.update(
            seq.request.client.name for seq in before if seq not in server.scheduler.running and not ended(seq, server)
        )
    assert lost[SMALL.name] == 0 < lost[FLOOD.name]
    server.drain()
    assert all(request.ends == ["length"] for request in many)


def ended(seq: object, server: Service) -> bool:
    return bool(server.requests[int(seq.request_id)].ends)  # type: ignore[attr-defined]


def test_nobody_gives_way_in_vain_for_pages_that_others_hold_too() -> None:
    server = service(num_pages=200, context_length=600, max_slots=16)
    server.add([0] * 200, 60, client=FLOOD)
    steps(server, 10)
    for _ in range(7):
        server.add([0] * 200 + [1], 60, client=FLOOD)
    steps(server, 12)
    assert running(server) == {"flood": 8}
    newcomer = server.add([2] * 590, 5, client=SMALL)
    steps(server, 5)
    assert not newcomer.received
    assert running(server) == {"flood": 8}
    server.drain()


def test_no_more_give_way_than_have_to_and_pages_that_only_they_share_count() -> None:
    server = service(num_pages=140, context_length=600, max_slots=16)
    server.add([1] * 20, 300, client=FLOOD)
    steps(server, 3)
    for number in range(4):
        server.add([0] * 200 + [number % 3] * (number + 1), 100, client=FLOOD)
        steps(server, 10)
    assert running(server) == {"flood": 5}
    server.add([2] * 120, 5, client=SMALL)  # takes more than is free, and less than is free without the last
    steps(server, 3)
    assert running(server)[SMALL.name] == 1
    assert running(server)[FLOOD.name] >= 1
    server.drain()


def test_a_client_that_has_nothing_left_is_forgotten() -> None:
    server = service()
    for index in range(50):
        server.add([1], 2, client=Client(str(index)))
    server.drain()
    assert server.scheduler.waiting.clients == 0


def test_who_begun_keeps_its_turn_when_it_is_retracted() -> None:
    server = service(max_slots=2)
    requests = flood(server, 4, output=30)
    steps(server, 5)
    assert begun(requests, server) == [0, 1]
    newcomer = server.add([2] * 5, 10, client=SMALL)
    steps(server, 3)
    assert running(server) == {"flood": 1, "small": 1}
    while not newcomer.ends:
        step(server)
    steps(server, 2)
    assert [seq.request_id for seq in server.scheduler.running] == ["0", "1"]
    server.drain()
