"""Work on slow constraints: clients take turns by the time that theirs takes, however much of it waits."""

import threading
from collections.abc import Iterator

import pytest
from numaserve.server.engine.masks.slow_work import SlowWork
from numaserve.server.scheduler.client import Client


@pytest.fixture
def slow() -> Iterator[SlowWork]:
    made = SlowWork()
    yield made
    made.close()
    for thread in [each for each in threading.enumerate() if each.name.startswith("slow-matcher")]:
        thread.join()


def test_a_client_with_much_work_holds_up_another_for_a_piece_at_most(slow: SlowWork) -> None:
    gate, done, order = threading.Event(), threading.Event(), list[str]()
    lock = threading.Lock()

    def piece(name: str) -> None:
        gate.wait()
        with lock:
            order.append(name)
            if len(order) == 41:
                done.set()

    for _ in range(40):
        slow.submit(lambda: piece("many"), Client("many"))
    slow.submit(lambda: piece("one"), Client("one"))
    gate.set()
    assert done.wait(60)
    assert order.index("one") <= 4  # those that had begun, and as many more while it was looked for


def test_no_more_than_two_run_at_once(slow: SlowWork) -> None:
    gate, ended = threading.Event(), threading.Semaphore(0)
    running, most, lock = [0], [0], threading.Lock()

    def piece() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        gate.wait()
        with lock:
            running[0] -= 1
        ended.release()

    for index in range(10):
        slow.submit(piece, Client(f"{index}"))
    gate.set()
    for _ in range(10):
        assert ended.acquire(timeout=60)
    assert most[0] <= 2


def test_clients_that_want_nothing_any_more_are_forgotten(slow: SlowWork) -> None:
    done = threading.Semaphore(0)
    for index in range(50):
        slow.submit(done.release, Client(f"{index}"))
    for _ in range(50):
        assert done.acquire(timeout=60)
    slow.close()
    for thread in [each for each in threading.enumerate() if each.name.startswith("slow-matcher")]:
        thread.join()
    assert not slow._pieces
