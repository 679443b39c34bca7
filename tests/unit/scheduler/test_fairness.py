"""Clients share slots, pages and the computing of prompts."""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.queue import PLACES_A_PRIORITY
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.workers.protocol import StepPlan
from scheduler_simulation import Request, Service

from tests.support.scheduler_integrity import check_integrity

FLOOD, SMALL = Client("flood"), Client("small")


def service(*, ahead: bool = False, target_itl_s: float | None = None, **limits: int) -> Service:
    defaults = {
        "num_pages": 400,
        "context_length": 400,
        "max_running_requests": 8,
        "max_step_tokens": 32,
        "max_logit_rows": 32,
        "page_size": 4,
    }
    return Service(SchedulerConfig(**{**defaults, **limits}, target_itl_s=target_itl_s), ahead)  # type: ignore[arg-type]


def step(server: Service) -> StepPlan | None:
    plan = server.schedule()
    if server.sent and (plan is None or not server.ahead or len(server.sent) == 2):
        server.receive()
    check_integrity(server.scheduler)
    return plan


def steps(server: Service, count: int) -> None:
    for _ in range(count):
        step(server)


def flood(server: Service, count: int, client: Client = FLOOD, *, prompt: int = 5, output: int = 60) -> list[Request]:
    salts = [f"{client.name} {index}" for index in range(count)]  # nothing is shared
    return [server.add([1] * prompt, output, salt=salt, client=client) for salt in salts]


def plans_until_begun(server: Service, request: Request) -> int:
    """Plans until the first that has some of the request's prompt."""
    for count in range(1, 1000):
        step(server)
        if any(seq.request_id == str(request.seed) for seq in server.scheduler.newly_admitted):
            return count
    raise AssertionError("it does not begin")


def running(server: Service) -> Counter[str]:
    return Counter(seq.client.name for seq in server.scheduler.running)


def begun(requests: Iterable[Request], server: Service) -> list[int]:
    waiting = {int(seq.request_id) for seq in server.scheduler.waiting if not seq.has_begun}
    return [request.seed for request in requests if request.seed not in waiting]


@given(
    ahead=st.booleans(),
    pages=st.integers(40, 120),
    slots=st.integers(2, 8),
    target=st.sampled_from([None, 1e-9, 0.004]),
    warm_up=st.integers(5, 40),
    prompts=st.lists(st.integers(1, 60), min_size=12, max_size=24),
    own=st.integers(1, 40),
)
def test_a_newcomer_begins_within_three_steps_though_one_client_holds_everything(
    *, ahead: bool, pages: int, slots: int, target: float | None, warm_up: int, prompts: list[int], own: int
) -> None:
    server = service(ahead=ahead, num_pages=pages, max_running_requests=slots, context_length=100, target_itl_s=target)
    for index, length in enumerate(prompts):
        server.add([index % 3] * length, 30, salt=str(index), client=FLOOD)
    steps(server, warm_up)
    first_holds = sum(len(seq.pages) for seq in server.scheduler.running[:1])  # nobody runs when all have just ended
    fits = first_holds + own // 4 + 3 <= pages  # the flood's first sequence keeps what it has
    newcomer = server.add([2] * own, 5, client=SMALL)
    if fits:
        assert plans_until_begun(server, newcomer) <= 3
    server.drain()


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
    server = service(max_running_requests=9, max_logit_rows=64, max_step_tokens=64)
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
    server = service(num_pages=128, max_running_requests=32)
    flood(server, 40, Client("long"), prompt=120, output=100)
    flood(server, 400, Client("short"), prompt=12, output=20)
    held: Counter[str] = Counter()
    for _ in range(300):
        step(server)
        for seq in server.scheduler.running:
            held[seq.client.name] += len(seq.pages)
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
        lost.update(seq.client.name for seq in before if seq not in server.scheduler.running and not ended(seq, server))
    assert lost[SMALL.name] == 0 < lost[FLOOD.name]
    server.drain()
    assert all(request.ends == ["length"] for request in many)


def ended(seq: object, server: Service) -> bool:
    return bool(server.requests[int(seq.request_id)].ends)  # type: ignore[attr-defined]


def test_nobody_gives_way_in_vain_for_pages_that_others_hold_too() -> None:
    server = service(num_pages=200, context_length=600, max_running_requests=16)
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
    server = service(num_pages=140, context_length=600, max_running_requests=16)
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


def test_urgent_requests_overtake_those_of_their_client_only() -> None:
    server = service(max_running_requests=1)
    calm, urgent = (server.add([1], 2, salt=str(n), priority=n, client=FLOOD) for n in (0, -1))
    other = server.add([1], 2, client=SMALL)
    order = []
    while not server.nobody_left:
        step(server)
        order += [int(seq.request_id) for seq in server.scheduler.newly_admitted]
    assert order == [urgent.seed, other.seed, calm.seed]


def test_nobody_is_overtaken_for_ever_by_more_urgent_requests() -> None:
    server = service(max_running_requests=1)
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
    computed = {seq.request_id: seq.num_computed for seq in server.scheduler.running}
    assert computed[str(two.seed)] == pytest.approx(2 * computed[str(one.seed)], abs=8)
    server.drain()


def test_newcomers_without_end_keep_nobody_from_computing_a_prompt() -> None:
    server = service(target_itl_s=1e-9, max_running_requests=32, num_pages=600)
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
    server = service(max_running_requests=2)
    requests = flood(server, 6, output=10)
    for count in range(1, 400):
        server.add([2] * 3, 3, salt=str(count), client=Client(f"newcomer {count}"))
        step(server)
        if all(request.ends for request in requests):
            break
    assert all(request.ends == ["length"] for request in requests)
    server.drain()


def test_sequences_begin_by_weight_where_there_are_fewer_slots_than_clients() -> None:
    server = service(max_running_requests=1)
    flood(server, 40, Client("one"), output=3)
    flood(server, 40, Client("three", 3.0), output=3)
    order: list[str] = []
    while len(order) < 32:
        step(server)
        order += [seq.client.name for seq in server.scheduler.newly_admitted]
    assert Counter(order) == {"one": 8, "three": 24}
    server.drain()


def test_who_has_computed_a_long_prompt_is_not_overtaken_by_all_the_short_ones_that_come() -> None:
    server = service(max_running_requests=1, num_pages=200)
    flood(server, 2, prompt=300, output=2)
    begun: list[str] = []
    count = 0
    while begun.count(FLOOD.name) < 2:
        while server.scheduler.waiting.clients < 6:
            server.add([2], 2, salt=str(count), client=Client(f"newcomer {count}"))
            count += 1
        step(server)
        begun += [seq.client.name for seq in server.scheduler.newly_admitted]
    assert len(begun) < 16
    server.drain()


def test_a_client_that_has_nothing_left_is_forgotten() -> None:
    server = service()
    for index in range(50):
        server.add([1], 2, client=Client(str(index)))
    server.drain()
    assert server.scheduler.waiting.clients == 0


def test_who_begun_keeps_its_turn_when_it_is_retracted() -> None:
    server = service(max_running_requests=2)
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
