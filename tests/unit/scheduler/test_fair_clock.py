"""The clock of turns by itself; what it does for sequences is in test_turns.py."""

from collections import Counter

import pytest
from numaserve.server.scheduler.queue.fair_clock import FairClock


def clock_of(**weights: float) -> FairClock:
    clock = FairClock()
    for client, weight in weights.items():
        clock.enter(client, weight)
    return clock


def take_turns(clock: FairClock, clients: list[str], count: int, amount: float = 1.0) -> list[str]:
    taken = []
    for _ in range(count):
        client = min(clients, key=clock.start)
        clock.took(client, amount)
        taken.append(client)
    return taken


def test_turns_are_had_by_weight() -> None:
    assert Counter(take_turns(clock_of(one=1.0, three=3.0), ["one", "three"], 400)) == {"one": 100, "three": 300}


def test_long_turns_are_had_seldom() -> None:
    clock = clock_of(long=1.0, short=1.0)
    had: Counter[str] = Counter()
    for _ in range(110):
        client = min(("long", "short"), key=clock.start)
        clock.took(client, 10 if client == "long" else 1)
        had[client] += 1
    assert had == {"long": 10, "short": 100}


def test_who_wanted_nothing_has_saved_up_nothing() -> None:
    clock = clock_of(busy=1.0, idle=1.0)
    take_turns(clock, ["busy"], 100)
    assert Counter(take_turns(clock, ["busy", "idle"], 20)) == {"busy": 10, "idle": 10}


def test_newcomers_without_end_overtake_nobody_for_ever() -> None:
    clock = clock_of(patient=1.0, other=1.0)
    clock.took("patient", 5)
    for count in range(1, 100):
        clock.enter(str(count), 1.0)
        if clock.start("patient") <= clock.start(str(count)):
            break
        clock.took(str(count), 1)
        clock.leave(str(count))
    assert count == 9  # the first begins at 2.5, and each one of three clients moves the next by a third


def test_a_newcomer_does_not_wait_for_what_a_client_of_small_weight_has_had() -> None:
    clock = clock_of(light=0.01, other=1.0)
    clock.took("light", 100)
    clock.took("other", 1)
    clock.enter("newcomer", 1.0)
    turns = take_turns(clock, ["other", "newcomer"], 400)
    assert turns.index("newcomer") < 150  # the light one's end is at 10,000


def test_a_client_has_its_newest_weight() -> None:
    clock = clock_of(one=1.0, other=1.0)
    clock.enter("one", 4.0)
    assert Counter(take_turns(clock, ["one", "other"], 50)) == {"one": 40, "other": 10}


def test_small_weights_count_after_a_great_one_has_left() -> None:
    clock = clock_of(great=1e20, small=1e-3)
    clock.took("great", 1)
    clock.leave("great")
    clock.took("small", 1)
    clock.enter("newcomer", 1.0)
    assert clock.start("newcomer") == pytest.approx(1e3)
