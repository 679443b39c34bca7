"""Requests wait for new workers for so long, and are not given up while there are some."""

import asyncio
import logging
from typing import cast

import pytest
from numaserve.server.engine.recovery.outage import Outage
from numaserve.server.metrics.metrics import Metrics

TIMEOUT_S = 10.0
pytestmark = pytest.mark.simulated_time


class Watched:
    """An outage, the times at which it has expired, and the pauses that were counted."""

    def __init__(self) -> None:
        clock = asyncio.get_running_loop().time
        self.expired: list[float] = []
        self.pauses: list[float] = []
        self.outage = Outage(
            cast(Metrics, self), clock, timeout_s=TIMEOUT_S, expired=lambda: self.expired.append(clock())
        )

    def resume_pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


async def test_it_expires_when_no_workers_come() -> None:
    watched = Watched()
    watched.outage.workers_down()
    await asyncio.sleep(3 * TIMEOUT_S)
    assert watched.expired == [pytest.approx(TIMEOUT_S, abs=0.1)]
    assert watched.outage.expired
    watched.outage.workers_up()
    assert not watched.outage.expired


async def test_it_does_not_expire_while_there_are_workers() -> None:
    watched = Watched()
    watched.outage.workers_down()
    await asyncio.sleep(1.0)
    watched.outage.workers_up()
    await asyncio.sleep(3 * TIMEOUT_S)
    watched.outage.end()
    assert not watched.expired
    assert watched.pauses == [1.0 + 3 * TIMEOUT_S]


async def test_workers_that_die_before_they_answer_do_not_begin_it_anew() -> None:
    watched = Watched()
    watched.outage.workers_down()
    for _ in range(3):
        await asyncio.sleep(4.0)
        if not watched.expired:
            watched.outage.workers_up()
            watched.outage.workers_down()
    assert watched.expired == [pytest.approx(TIMEOUT_S, abs=0.1)]


async def test_it_begins_anew_once_there_was_an_answer() -> None:
    watched = Watched()
    watched.outage.workers_down()
    await asyncio.sleep(4.0)
    watched.outage.workers_up()
    watched.outage.end()
    await asyncio.sleep(100.0)
    watched.outage.workers_down()
    await asyncio.sleep(0.9 * TIMEOUT_S)
    assert not watched.expired
    watched.outage.close()
    await asyncio.sleep(100.0)
    assert not watched.expired
    assert watched.pauses == [4.0]


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, float]]:
    """The fields of every line of the log."""
    assert {record.message for record in caplog.records} == {"outage"}
    return [vars(record)["fields"] for record in caplog.records]


async def test_the_log_tells_its_parts_in_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watched = Watched()
    watched.outage.workers_down()
    await asyncio.sleep(0.5)
    watched.outage.workers_ended()
    await asyncio.sleep(2.0)
    watched.outage.workers_up()
    await asyncio.sleep(4.0)
    watched.outage.end()
    watched.outage.end()
    assert told(caplog) == [{"duration": 6.5, "ending": 0.5, "loading": 2.0, "answering": 4.0}]


async def test_of_several_deaths_the_last_ones_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watched = Watched()
    for _ in range(2):
        watched.outage.workers_down()
        await asyncio.sleep(0.5)
        watched.outage.workers_ended()
        await asyncio.sleep(2.0)
    watched.outage.workers_up()
    watched.outage.end()
    assert told(caplog) == [{"duration": 5.0, "ending": 3.0, "loading": 2.0, "answering": 0.0}]
