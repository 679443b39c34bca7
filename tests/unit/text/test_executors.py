import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager

import pytest
from numaserve.server.common.fair_semaphore import FairSemaphore
from numaserve.server.engine.types import NotReady, QueueFull
from numaserve.server.scheduler.client import Client
from numaserve.server.text.caller import CALLER
from numaserve.server.text.executor import Executor


class Gate:
    """Work that waits until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.opened.wait(30)
        return "done"


async def begun(gate: Gate) -> None:
    while not gate.begun.is_set():
        await asyncio.sleep(0.001)


@asynccontextmanager
async def busy_lane() -> AsyncIterator[Executor]:
    """A executor whose only thread is at work until the block ends."""
    executor = Executor("test", threads=1, max_requests=9)
    gate = Gate()
    first = asyncio.create_task(executor.run(gate))
    await begun(gate)
    yield executor
    gate.opened.set()
    assert await first == "done"


def test_a_full_lane_refuses_and_has_room_again_when_a_request_has_left() -> None:
    executor = Executor("test", threads=1, max_requests=2)
    with executor.admitted():
        with executor.admitted(), pytest.raises(QueueFull) as refused, executor.admitted():
            pass
        assert refused.value.retry_after >= 1
        with executor.admitted():
            pass
    executor.close()


async def test_requests_take_turns() -> None:
    order: list[str] = []

    async def request(executor: Executor, name: str) -> None:
        for _ in range(3):
            await executor.run(lambda: order.append(name))

    async with busy_lane() as executor:
        others = [asyncio.create_task(request(executor, name)) for name in "ab"]
        await asyncio.sleep(0)
    await asyncio.gather(*others)
    executor.close()
    assert order == ["a", "b"] * 3


async def test_callers_take_turns_whatever_number_of_requests_they_have() -> None:
    order: list[str] = []

    async def request(executor: Executor, caller: str, name: str) -> None:
        CALLER.set(Client(caller))
        await executor.run(lambda: order.append(name))

    jobs = [("flood", f"flood {index}") for index in range(5)] + [("small", "small"), ("other", "other")]
    async with busy_lane() as executor:
        waiting = [asyncio.create_task(request(executor, *job)) for job in jobs]
        await asyncio.sleep(0)
        waiting[1].cancel()
        waiting[6].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    executor.close()
    assert order == ["flood 0", "small", "flood 2", "flood 3", "flood 4"]


async def test_a_permit_that_comes_as_its_caller_leaves_goes_to_the_next() -> None:
    line = FairSemaphore(1)
    await line.acquire("first")
    leaver, next_one = (asyncio.create_task(line.acquire(whose)) for whose in ("leaver", "next"))
    await asyncio.sleep(0)
    line.release("first")  # the leaver's
    leaver.cancel()
    await next_one
    line.release("next")
    await line.acquire("somebody")  # none was lost
    assert not line._waiting


async def test_a_caller_leaves_the_permits_beyond_its_own_to_others() -> None:
    line = FairSemaphore(2, each=1)
    await line.acquire("first")
    again = asyncio.create_task(line.acquire("first"))
    await asyncio.sleep(0)
    await line.acquire("other")  # a permit is free, though a caller waits
    third = asyncio.create_task(line.acquire("third"))
    await asyncio.sleep(0)
    line.release("other")
    await third
    assert not again.done()
    line.release("first")
    await again
    for whose in ("first", "third"):
        line.release(whose)
    await line.acquire("first")  # none was lost, and none remembered
    assert not line._waiting
    assert line._held == {"first": 1}


async def test_a_full_lane_keeps_a_reserve_for_callers_of_whom_nothing_is_in() -> None:
    executor = Executor("test", threads=1, max_requests=8)
    with ExitStack() as entered:
        CALLER.set(Client("flood"))
        for _ in range(8):
            entered.enter_context(executor.admitted())
        with pytest.raises(QueueFull):
            entered.enter_context(executor.admitted())
        CALLER.set(Client("newcomer"))
        entered.enter_context(executor.admitted())
        CALLER.set(Client("one more"))
        with pytest.raises(QueueFull):
            entered.enter_context(executor.admitted())
    executor.close()


async def test_what_failed_is_freed_without_a_collection_of_garbage() -> None:
    class Text:
        def read(self) -> None:
            raise ValueError("unreadable")

    async def fail(executor: Executor) -> weakref.ref[Text]:
        text = Text()
        with pytest.raises(ValueError, match="unreadable"):
            await executor.run(text.read)
        return weakref.ref(text)

    executor = Executor("test", threads=1, max_requests=9)
    gc.disable()
    try:
        forgotten = await asyncio.create_task(fail(executor))
        await executor.run(lambda: None)  # the thread has let go of it too
        assert forgotten() is None
    finally:
        gc.enable()
        executor.close()


async def test_what_a_client_that_left_waited_for_never_begins_and_is_forgotten() -> None:
    class Text:
        pass

    executor = Executor("test", threads=1, max_requests=9)
    gate = Gate()
    first = asyncio.create_task(executor.run(gate))
    await begun(gate)
    called: list[object] = []

    def work_on(text: Text) -> Callable[[], None]:
        return lambda: called.append(text)

    text = Text()
    forgotten = weakref.ref(text)
    second = asyncio.create_task(executor.run(work_on(text)))
    del text
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    del second
    assert forgotten() is None
    gate.opened.set()
    await first
    await executor.run(lambda: None)
    assert not called
    executor.close()


async def test_a_client_that_leaves_does_not_wait_for_its_work_and_others_do() -> None:
    executor = Executor("test", threads=1, max_requests=9)
    gate = Gate()
    left = asyncio.create_task(executor.run(gate))
    await begun(gate)
    left.cancel()
    await asyncio.wait([left])
    assert left.cancelled()
    following = asyncio.create_task(executor.run(gate.opened.is_set))
    await asyncio.sleep(0.01)
    assert not following.done()
    gate.opened.set()
    assert await following
    executor.close()


async def test_an_error_in_the_work_is_the_caller_s() -> None:
    executor = Executor("test", threads=1, max_requests=9)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await executor.run(lambda: 1 // 0)
    executor.close()


async def test_a_closed_lane_runs_nothing_more() -> None:
    executor = Executor("test", threads=1, max_requests=9)
    gate = Gate()
    first = asyncio.create_task(executor.run(gate))
    await begun(gate)
    second = asyncio.create_task(executor.run(lambda: "never"))
    await asyncio.sleep(0)
    executor.close()
    gate.opened.set()
    assert await first == "done"
    for late in (second, executor.run(lambda: "never")):
        with pytest.raises(NotReady):
            await late
