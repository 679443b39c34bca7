import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
from numaserve.server.supervisor.cpu_time import ThreadTime
from numaserve.server.supervisor.judge import RankLook
from numaserve.server.supervisor.progress import ProgressWatch, Witness

from tests.support.simulated_loop import SimulatedLoop

DEADLINE = 0.05


def _stalls(drive: Any) -> int:
    stalls = 0

    def on_stall() -> None:
        nonlocal stalls
        stalls += 1

    async def scenario() -> None:
        watch = ProgressWatch(DEADLINE, on_stall)
        steps: Coroutine[Any, Any, None] = drive(watch)
        await steps
        watch.stop()

    asyncio.run(scenario())
    return stalls


def test_a_step_that_is_not_answered_is_a_stall_told_once() -> None:
    async def drive(watch: ProgressWatch) -> None:
        watch.expect(2)
        watch.answered()
        await asyncio.sleep(6 * DEADLINE)

    assert _stalls(drive) == 1


def test_idleness_is_no_stall() -> None:
    async def drive(watch: ProgressWatch) -> None:
        watch.expect(1)
        watch.answered()
        await asyncio.sleep(4 * DEADLINE)

    assert _stalls(drive) == 0


def test_a_stall_after_idleness_is_noticed() -> None:
    async def drive(watch: ProgressWatch) -> None:
        watch.expect(1)
        watch.answered()
        await asyncio.sleep(4 * DEADLINE)
        watch.expect(1)
        await asyncio.sleep(6 * DEADLINE)

    assert _stalls(drive) == 1


def test_after_stop_nothing_is_told() -> None:
    async def drive(watch: ProgressWatch) -> None:
        watch.expect(1)
        watch.stop()
        await asyncio.sleep(4 * DEADLINE)

    assert _stalls(drive) == 0


def test_a_deadline_that_is_shorter_from_now_on_is_kept_at_once() -> None:
    async def drive(watch: ProgressWatch) -> None:
        watch.allow(3600.0)
        watch.expect(1)
        await asyncio.sleep(2 * DEADLINE)
        watch.allow(DEADLINE)
        await asyncio.sleep(0)
        await asyncio.sleep(2 * DEADLINE)

    assert _stalls(drive) == 1


def test_a_deadline_that_is_longer_from_now_on_is_waited_for() -> None:
    async def drive(watch: ProgressWatch) -> None:
        watch.expect(1)
        watch.allow(3600.0)
        await asyncio.sleep(4 * DEADLINE)

    assert _stalls(drive) == 0


def test_workers_are_not_late_for_the_time_in_which_nobody_could_read_their_answers() -> None:
    stalls: list[float] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        watch = ProgressWatch(5.0, lambda: stalls.append(loop.time()))
        watch.expect(1)
        await asyncio.sleep(4.0)
        loop.go_away(100.0)
        await asyncio.sleep(0.5)
        assert loop.time() >= 104.0
        assert 3.5 < watch.waited_s < 5.0  # what the watchdog of a service manager is told by
        assert not stalls
        await asyncio.sleep(2.0)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(scenario())
    assert len(stalls) == 1


def _stalled_at(state: Callable[[float], RankLook], seconds: float) -> tuple[list[float], float]:
    """Return when a watch with a deadline of 5 s reports a stall of a rank in such states, and its starved seconds."""
    stalls: list[float] = []
    starved = 0.0

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def look(with_times: bool) -> dict[int, RankLook]:
            seen = state(loop.time())
            return {0: seen if with_times else RankLook(seen.barriers)}

        def on_starved(seconds: Mapping[int, float], _elapsed: float) -> None:
            nonlocal starved
            starved += seconds[0]

        watch = ProgressWatch(5.0, lambda: stalls.append(loop.time()), Witness(look, on_starved))
        watch.expect(1)
        await asyncio.sleep(seconds)
        watch.stop()

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(scenario())
    return stalls, starved


def _thread(state: str, ran: float, barriers: int = 0) -> RankLook:
    return RankLook(barriers, threads={1: ThreadTime(state, ran, 0.0)})


@pytest.mark.parametrize("state", ["R", "S", "T"])
def test_a_rank_that_hangs_is_found_within_the_deadline_whether_it_runs_or_not(state: str) -> None:
    stalls, starved = _stalled_at(lambda now: _thread(state, now if state == "R" else 0.0), 60.0)
    assert (stalls, starved) == ([pytest.approx(5.0, abs=0.3)], pytest.approx(0.0))


def test_a_rank_that_passes_a_barrier_now_and_then_is_late_and_not_dead() -> None:
    assert _stalled_at(lambda now: _thread("R", now, barriers=int(now / 4)), 600.0) == ([], pytest.approx(0.0))


def test_a_rank_without_a_processor_is_awaited_and_its_time_told() -> None:
    stalls, starved = _stalled_at(lambda now: _thread("R", 0.02 * now), 60.0)
    assert (stalls, starved) == ([], pytest.approx(0.98 * 59, rel=0.02))


def test_a_loop_of_a_starved_rank_is_found_after_the_deadline_in_processor_time() -> None:
    stalls, _ = _stalled_at(lambda now: _thread("R", 0.05 * now), 200.0)
    assert stalls == [pytest.approx(4.0 / 0.05, rel=0.05)]  # the first second counts whole


def test_a_rank_that_hangs_after_some_progress_has_its_whole_deadline_from_then_on() -> None:
    stalls, _ = _stalled_at(lambda now: _thread("R", now, barriers=min(int(now), 20)), 60.0)
    assert stalls == [pytest.approx(25.0, abs=0.5)]
