"""The threads of matchers."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from numaserve.server.engine.masks.matcher_threads import MatcherThreads


@pytest.fixture
def threads() -> Iterator[MatcherThreads]:
    made = MatcherThreads()
    yield made
    made.close()
    for thread in [each for each in threading.enumerate() if each.name.startswith("matcher")]:
        thread.join()


async def wait_for(event: threading.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.01)


async def test_there_is_no_thread_before_there_is_work(threads: MatcherThreads) -> None:
    assert not any(thread.name.startswith("matcher") for thread in threading.enumerate())
    done = threading.Event()
    threads.submit(done.set)
    assert any(thread.name.startswith("matcher") for thread in threading.enumerate())
    await wait_for(done)


async def test_pieces_that_do_not_come_back_hold_up_none_behind_them(threads: MatcherThreads) -> None:
    release, done = threading.Event(), threading.Event()
    for _ in range(5):
        threads.submit(lambda: release.wait() and None)
    threads.submit(done.set)
    await wait_for(done)
    assert not release.is_set()
    release.set()


async def test_threads_that_were_replaced_end_when_they_come_back(threads: MatcherThreads) -> None:
    before = threading.active_count()
    release, done = threading.Event(), threading.Event()
    for _ in range(5):
        threads.submit(lambda: release.wait() and None)
    threads.submit(done.set)
    await wait_for(done)
    most = threading.active_count()
    release.set()
    while threading.active_count() >= most or threading.active_count() > before + 3:
        await asyncio.sleep(0.01)
    again = threading.Event()
    threads.submit(again.set)
    await wait_for(again)


async def test_closed_threads_end() -> None:
    before = threading.active_count()
    threads = MatcherThreads()
    done = threading.Event()
    threads.submit(done.set)
    await wait_for(done)
    threads.close()
    while threading.active_count() > before:
        await asyncio.sleep(0.01)
