"""Sequences that wait while another one computes their prefix."""

from functools import partial

import pytest
from numaserve.server.scheduler.client import Client
from scheduler_simulation import Service, small_service

from tests.support.scheduler_integrity import check_integrity

PAGE = 4
SHARED = list(range(10, 50))  # ten pages, and more than two steps
CHUNK = 16
OWN = 11  # tokens of each prompt after them, with a mark of its own in the middle

service = partial(small_service, num_pages=128, max_slots=8, max_step_tokens=CHUNK, num_snapshots=16)


def prompt(number: int, shared: int = len(SHARED)) -> list[int]:
    return SHARED[:shared] + [100 * number + index for index in range(OWN)]


def run(server: Service) -> int:
    """Run to the end. Return the number of prompt tokens that were computed."""
    computed = 0
    while not (server.nobody_left and not server.sent):
        plan = server.schedule()
        check_integrity(server.scheduler)
        prompts = {seq.slot: seq.prompt_len for seq in server.scheduler.running}
        for seq in [] if plan is None else plan.seqs:
            computed += max(0, min(seq.start + seq.num_tokens, prompts[seq.slot]) - seq.start)
        if server.sent and (plan is None or not server.ahead or len(server.sent) == 2):
            server.receive()
    assert all(request.is_answered for request in server.requests.values() if request.ends != ["abort"])
    return computed


def waiting(server: Service) -> set[str]:
    return {seq.request_id for seq in server.scheduler.waiting.aside}


@pytest.mark.parametrize("ahead", [False, True])
def test_a_prefix_is_computed_once(ahead: bool) -> None:
    server = service(ahead)
    for number in range(1, 8):
        server.add(prompt(number), 3)
    assert run(server) == len(SHARED) + 7 * OWN


def test_prefixes_of_several_depths_are_computed_once() -> None:
    server = service()
    for number in range(1, 4):
        server.add(prompt(number, 20), 3)
    for number in range(4, 7):
        server.add([*SHARED[:20], *range(60, 73), *prompt(number, 0)], 3)
    assert run(server) == 20 + 3 * OWN + 12 + 3 * (1 + OWN)  # one of 33 tokens is in a page with those of each


def test_others_may_overtake_who_waits() -> None:
    server = service()
    server.add(prompt(1), 3)
    server.schedule()
    waits, passes = server.add(prompt(2), 3), server.add([7, 8, 9], 3, client=Client("other"))
    server.receive()
    server.schedule()
    assert waiting(server) == {str(waits.seed)}
    assert str(passes.seed) in {seq.request_id for seq in server.scheduler.running}
    run(server)


@pytest.mark.parametrize("ends", [True, False])
def test_who_waits_goes_on_when_the_other_ends_or_has_passed(ends: bool) -> None:
    server = service()
    computing, waits = server.add(prompt(1), 3), server.add(prompt(2), 3)
    server.schedule()
    server.receive()
    server.schedule()
    assert waiting(server) == {str(waits.seed)}
    if ends:
        server.end(computing, "abort")
    server.receive()
    assert run(server) <= len(SHARED) + OWN + (0 if ends else OWN)
    assert waits.is_answered


def test_who_waits_can_leave() -> None:
    server = service()
    server.add(prompt(1), 3)
    leaves = server.add(prompt(2), 3)
    server.schedule()
    server.receive()
    server.schedule()
    assert waiting(server) == {str(leaves.seed)}
    server.end(leaves, "abort")
    assert waiting(server) == set()
    run(server)


def test_another_scope_and_a_single_page_are_not_waited_for() -> None:
    server = service()
    server.add(prompt(1), 3)
    server.add(prompt(2), 3, salt="tenant")
    server.add(prompt(3, PAGE), 3)
    server.schedule()
    assert waiting(server) == set()
    run(server)


@pytest.mark.parametrize("ahead", [False, True])
def test_after_a_death_a_prefix_is_computed_once_again(ahead: bool) -> None:
    server = service(ahead)
    for number in range(1, 8):
        server.add(prompt(number), 3)
    for _ in range(2):
        server.schedule()
        server.receive()
    server.restart_workers()
    check_integrity(server.scheduler)
    assert run(server) == len(SHARED) + 7 * OWN


def test_a_sequence_without_a_snapshot_is_waited_for_once() -> None:
    server = service(num_snapshots=1)
    holder = server.add([7, 8, 9], 60)
    for _ in range(3):
        server.schedule()
        server.receive()
    requests = [server.add(prompt(number), 3) for number in range(1, 4)]
    server.schedule()
    assert waiting(server) == {str(each.seed) for each in requests[1:]}
    while not requests[0].received:
        server.receive()
        server.schedule()
    server.receive()
    server.schedule()
    assert waiting(server) == set()  # they compute it one after the other, and wait for nobody
    run(server)
    assert holder.is_answered
