"""Patience with others is spent in this process's presence, and ends after a look at what they have said."""

import asyncio
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import uvloop
from numaserve.server.common import patience
from numaserve.server.common.patience import TICK_S, Patience, PatientTimer, patiently, wait_patiently

SECONDS = 5.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def looks(self, subject: Patience, *gaps: float) -> list[bool]:
        """What is answered at looks with these gaps before them."""
        answers = []
        for gap in gaps:
            self.now += gap
            answers.append(subject.ends())
        return answers


def test_it_ends_at_the_look_after_the_one_that_finds_nothing_left() -> None:
    clock = Clock()
    looks = clock.looks(Patience(1.0, clock), 0.4, 0.4, 0.4, 0.01)
    assert looks == [False, False, False, True]


def test_an_absence_is_not_spent_and_leaves_a_tick() -> None:
    clock = Clock()
    subject = Patience(1.0, clock)
    assert clock.looks(subject, 0.4, 0.4, 1000.0, 0.4, 1000.0) == [False] * 5
    assert subject.spent_s == pytest.approx(1.0 - TICK_S)
    assert clock.looks(subject, 0.4, 0.2, 0.01) == [False, False, True]


def test_an_absence_between_the_end_of_the_time_and_the_last_look_ends_nothing() -> None:
    clock = Clock()
    assert clock.looks(Patience(0.3, clock), 0.4, 1000.0, 0.4, 0.2, 0.01) == [False, False, False, False, True]


def test_what_was_spent_is_told_between_two_looks_and_bounded_by_a_tick() -> None:
    clock = Clock()
    subject = Patience(10.0, clock)
    clock.looks(subject, 0.4)
    clock.now += 0.3
    assert subject.spent_s == pytest.approx(0.7)
    clock.now += 1000.0
    assert subject.spent_s == pytest.approx(0.4 + TICK_S)


def test_time_that_is_excused_is_not_spent() -> None:
    clock = Clock()
    subject = Patience(1.0, clock)
    clock.looks(subject, 0.4, 0.4)
    subject.excuse(0.3)
    assert subject.spent_s == pytest.approx(0.5)
    subject.excuse(-0.2)
    assert subject.spent_s == pytest.approx(0.7)
    subject.excuse(math.inf)
    assert subject.spent_s == 0.0
    assert clock.looks(subject, 0.4, 0.4, 0.2, 0.01) == [False, False, False, True]


def test_no_more_is_excused_than_was_spent_since_the_last_look() -> None:
    clock = Clock()
    subject = Patience(1.0, clock)
    clock.looks(subject, 0.4, 0.4)
    subject.excuse(5.0)
    assert subject.spent_s == pytest.approx(0.4)
    clock.looks(subject, 1000.0)
    subject.excuse(1000.0)
    assert subject.spent_s == pytest.approx(0.4)


@pytest.mark.simulated_time
async def test_a_timer_ends_when_its_seconds_are_over() -> None:
    ended: list[float] = []
    clock = asyncio.get_running_loop().time
    timer = PatientTimer(lambda: ended.append(clock()))
    timer.start(SECONDS)
    await asyncio.sleep(SECONDS - 0.1)
    assert (ended, timer.spent_s) == ([], pytest.approx(SECONDS - 0.1))
    await asyncio.sleep(10 * SECONDS)
    assert ended == [pytest.approx(SECONDS, abs=0.1)]
    assert timer.spent_s == 0.0


@pytest.mark.simulated_time
@pytest.mark.parametrize("how", ["start", "allow"])
async def test_a_timer_has_the_seconds_that_it_was_given_last(how: str) -> None:
    ended: list[float] = []
    clock = asyncio.get_running_loop().time
    timer = PatientTimer(lambda: ended.append(clock()))
    timer.start(SECONDS)
    await asyncio.sleep(1.0)
    getattr(timer, how)(2 * SECONDS)
    await asyncio.sleep(10 * SECONDS)
    assert ended == [pytest.approx(2 * SECONDS + (how == "start"), abs=0.1)]


@pytest.mark.simulated_time
@pytest.mark.parametrize("how", ["stop", "pause"])
async def test_a_timer_that_does_not_run_ends_nothing_and_may_start_again(how: str) -> None:
    ended: list[float] = []
    clock = asyncio.get_running_loop().time
    timer = PatientTimer(lambda: ended.append(clock()))
    timer.start(SECONDS)
    getattr(timer, how)()
    timer.allow(1.0)
    await asyncio.sleep(3 * SECONDS)
    assert ended == []
    timer.start(SECONDS)
    await asyncio.sleep(3 * SECONDS)
    assert ended == [pytest.approx(4 * SECONDS, abs=0.1)]


@pytest.mark.simulated_time
async def test_a_wait_ends_with_what_is_awaited_or_with_its_seconds() -> None:
    loop = asyncio.get_running_loop()
    done, never = loop.create_future(), loop.create_future()
    loop.call_later(1.0, done.set_result, None)
    await wait_patiently([done], SECONDS)
    assert loop.time() == 1.0
    await wait_patiently([done, never], SECONDS)
    assert loop.time() == pytest.approx(1.0 + SECONDS, abs=0.1)
    with pytest.raises(TimeoutError):
        async with patiently(SECONDS):
            await never


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ticks of a few hundredths of a second."""
    monkeypatch.setattr(patience, "TICK_S", 0.1)
    monkeypatch.setattr(patience, "_LOOK_S", 0.05)
    yield


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("absence_s", [0.3, 0.06])
@pytest.mark.usefixtures("quick")
def test_an_answer_that_waits_is_read_before_the_time_is_over(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], absence_s: float
) -> None:
    """uvloop calls timers before it looks at descriptors."""
    ended: list[str] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        source, sink = os.pipe()
        timer = PatientTimer(lambda: ended.append("the time is over"))

        def read() -> None:
            ended.append(os.read(source, 100).decode())
            timer.stop()

        loop.add_reader(source, read)
        timer.start(0.05)
        await asyncio.sleep(0)
        os.write(sink, b"an answer")
        time.sleep(absence_s)  # the loop does nothing, as if it were stopped
        await asyncio.sleep(0.3)
        loop.remove_reader(source)
        os.close(source)
        os.close(sink)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())
    assert ended == ["an answer"]


WAITS = """
import asyncio, sys, uvloop
from numaserve.server.common.patience import PatientTimer

async def main():
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    timer = PatientTimer(lambda: ended.set_result("the time is over"))
    loop.add_reader(0, lambda: (timer.stop(), ended.set_result(sys.stdin.readline().strip())))
    timer.start(1.0)
    print("waits", flush=True)
    print(await ended, flush=True)

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""


def test_a_process_that_is_stopped_for_longer_judges_nobody_when_it_goes_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        time.sleep(1.5)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.2)  # whoever answers was stopped, too
        print("an answer", file=process.stdin, flush=True)
        assert process.stdout.readline() == "an answer\n"
