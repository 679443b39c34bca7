"""Clients take turns to begin sequences, and at the computing of prompts."""

from collections import Counter

import pytest
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.queue.queue import PLACES_A_PRIORITY
from shared_service import FLOOD, SMALL, flood, plans_until_begun, service, step, steps


def test_urgent_requests_overtake_those_of_their_client_only() -> None:
    server = service(max_slots=1)
    calm, urgent = (server.add([1], 2, salt=str(n), priority=n, client=FLOOD) for n in (0, -1))
    other = server.add([1], 2, client=SMALL)
    order = []
    while not server.nobody_left:
        step(server)
        order += [int(seq.request_id) for seq in server.scheduler.newly_admitted]
    assert order == [urgent.seed, other.seed, calm.seed]


def test_nobody_is_overtaken_for_ever_by_more_urgent_requests() -> None:
    server = service(max_slots=1)
    server.add([1], 1, client=FLOOD)
    patient = server.add([1], 1, priority=1, client=FLOOD)
    count = 0
    while not patient.ends:
        server.add([1], 1, client=FLOOD)
        step(server)
        count += 1
    assert PLACES_A_PRIORITY / 2 < count <= PLACES_A_PRIORITY + 2
    server.drain()


def test_a_short_prompt_need_not_wait_for_the_long_one_of_another() -> None:
    server = service(target_itl_s=1e-9, num_pages=600)
    for _ in range(2):
        server.add([0] * 5, 300, client=SMALL)
        steps(server, 20)
    long = server.add([1] * 390, 5, client=FLOOD)
    steps(server, 10)
    short = server.add([2] * 3, 5, client=SMALL)
    assert plans_until_begun(server, short) <= 2
    assert not long.received
    server.drain()


def test_a_short_prompt_need_not_wait_for_a_long_one_after_one_of_a_small_weight() -> None:
    server = service(target_itl_s=1e-9, num_pages=600)
    server.add([0] * 5, 390, client=SMALL)
    steps(server, 5)
    long = server.add([1] * 390, 5, client=FLOOD)
    steps(server, 3)
    server.add([1] * 30, 5, salt="light", client=Client("light", 0.01))
    steps(server, 5)
    newcomer = server.add([2] * 3, 5, client=Client("newcomer"))
    assert plans_until_begun(server, newcomer) <= 3
    assert not long.received
    server.drain()


def test_the_computing_of_prompts_is_divided_by_the_weights() -> None:
    server = service(target_itl_s=1e-9, num_pages=1000)
    server.add([0] * 5, 390, client=SMALL)
    steps(server, 5)
    one, two = (server.add([1] * 390, 1, salt=str(weight), client=Client(str(weight), weight)) for weight in (1.0, 2.0))
    steps(server, 60)
    computed = {seq.request_id: seq.position.computed for seq in server.scheduler.running}
    assert computed[str(two.seed)] == pytest.approx(2 * computed[str(one.seed)], abs=8)
    server.drain()


def test_newcomers_without_end_keep_nobody_from_computing_a_prompt() -> None:
    server = service(target_itl_s=1e-9, max_slots=32, num_pages=600)
    server.add([0] * 5, 390, client=SMALL)
    steps(server, 20)
    long = server.add([1] * 200, 5, client=FLOOD)
    for count in range(1, 1000):
        if count % 2:  # more would be more than there is to share
            server.add([2] * 4, 1, salt=str(count), client=Client(f"newcomer {count}"))
        step(server)
        if long.received:
            break
    assert count <= 2 * 200 / 4 + 10  # every other page is its
    server.drain()


def test_newcomers_without_end_keep_no_second_request_of_a_client_from_beginning() -> None:
    server = service(max_slots=2)
    requests = flood(server, 6, output=10)
    for count in range(1, 400):
        server.add([2] * 3, 3, salt=str(count), client=Client(f"newcomer {count}"))
        step(server)
        if all(request.ends for request in requests):
            break
    assert all(request.ends == ["length"] for request in requests)
    server.drain()


def test_sequences_begin_by_weight_where_there_are_fewer_slots_than_clients() -> None:
    server = service(max_slots=1)
    flood(server, 40, Client("one"), output=3)
    flood(server, 40, Client("three", 3.0), output=3)
    order: list[str] = []
    while len(order) < 32:
        step(server)
        order += [seq.request.client.name for seq in server.scheduler.newly_admitted]
    assert Counter(order) == {"one": 8, "three": 24}
    server.drain()


def test_who_has_computed_a_long_prompt_is_not_overtaken_by_all_the_short_ones_that_come() -> None:
    server = service(max_slots=1, num_pages=200)
    flood(server, 2, prompt=300, output=2)
    begun: list[str] = []
    count = 0
    while begun.count(FLOOD.name) < 2:
        while server.scheduler.waiting.clients < 6:
            server.add([2], 2, salt=str(count), client=Client(f"newcomer {count}"))
            count += 1
        step(server)
        begun += [seq.request.client.name for seq in server.scheduler.newly_admitted]
    assert len(begun) < 16
    server.drain()
