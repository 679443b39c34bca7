import asyncio
from collections.abc import Callable, Mapping

import pytest
from numaserve.server.supervisor.cpu_time import ThreadTime
from numaserve.server.supervisor.judge import RankLook
from numaserve.server.supervisor.progress import ProgressWatch, Witness

from tests.support.simulated_loop import SimulatedLoop

DEADLINE = 5.0
pytestmark = pytest.mark.simulated_time


class Watched:
    """A watch, the times of the stalls that it reports, and the starved seconds of a rank in such states."""

    def __init__(self, deadline_s: float = DEADLINE, state: Callable[[float], RankLook] | None = None) -> None:
        self._now, self._state = asyncio.get_running_loop().time, state
        self.stalls: list[float] = []
        self.starved = 0.0
        witness = () if state is None else (Witness(self._look, self._on_starved),)
        self.watch = ProgressWatch(deadline_s, lambda: self.stalls.append(self._now()), *witness)

    def _look(self, with_times: bool) -> dict[int, RankLook]:
        assert self._state is not None
        seen = self._state(self._now())
        return {0: seen if with_times else RankLook(seen.barriers)}

    def _on_starved(self, seconds: Mapping[int, float], _elapsed: float) -> None:
        self.starved += seconds[0]


async def test_a_step_that_is_not_answered_is_a_stall_told_once() -> None:
    watched = Watched()
    watched.watch.expect(2)
    watched.watch.answered()
    await asyncio.sleep(6 * DEADLINE)
    assert len(watched.stalls) == 1


async def test_idleness_is_no_stall_and_a_stall_after_it_is_noticed() -> None:
    watched = Watched()
    watched.watch.expect(1)
    watched.watch.answered()
    await asyncio.sleep(4 * DEADLINE)
    assert not watched.stalls
    watched.watch.expect(1)
    await asyncio.sleep(6 * DEADLINE)
    assert len(watched.stalls) == 1


async def test_after_stop_nothing_is_told() -> None:
    watched = Watched()
    watched.watch.expect(1)
    watched.watch.stop()
    await asyncio.sleep(4 * DEADLINE)
    assert not watched.stalls


async def test_a_deadline_that_is_shorter_from_now_on_is_kept_at_once() -> None:
    watched = Watched(3600.0)
    watched.watch.expect(1)
    await asyncio.sleep(2 * DEADLINE)
    assert not watched.stalls
    watched.watch.allow(DEADLINE)
    await asyncio.sleep(2 * DEADLINE)
    assert len(watched.stalls) == 1


async def test_a_deadline_that_is_longer_from_now_on_is_waited_for() -> None:
    watched = Watched()
    watched.watch.expect(1)
    watched.watch.allow(3600.0)
    await asyncio.sleep(4 * DEADLINE)
    assert not watched.stalls


async def test_workers_are_not_late_for_the_time_in_which_nobody_could_read_their_answers() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    watched = Watched()
    watched.watch.expect(1)
    await asyncio.sleep(4.0)
    loop.go_away(100.0)
    await asyncio.sleep(0.5)
    assert loop.time() >= 104.0
    assert 3.5 < watched.watch.waited_s < 5.0  # which decides about the watchdog of a service manager
    assert not watched.stalls
    await asyncio.sleep(2.0)
    assert len(watched.stalls) == 1


async def _stalled_at(state: Callable[[float], RankLook], seconds: float) -> tuple[list[float], float]:
    """Return when a watch reports a stall of a rank in such states, and its starved seconds."""
    watched = Watched(state=state)
    watched.watch.expect(1)
    await asyncio.sleep(seconds)
    watched.watch.stop()
    return watched.stalls, watched.starved


def _thread(state: str, ran: float, barriers: int = 0) -> RankLook:
    return RankLook(barriers, threads={1: ThreadTime(state, ran, 0.0)})


@pytest.mark.parametrize("state", ["R", "S", "T"])
async def test_a_rank_that_hangs_is_found_within_the_deadline_whether_it_runs_or_not(state: str) -> None:
    stalls, starved = await _stalled_at(lambda now: _thread(state, now if state == "R" else 0.0), 60.0)
    assert (stalls, starved) == ([pytest.approx(5.0, abs=0.3)], pytest.approx(0.0))


async def test_a_rank_that_passes_a_barrier_now_and_then_is_late_and_not_dead() -> None:
    assert await _stalled_at(lambda now: _thread("R", now, barriers=int(now / 4)), 600.0) == ([], pytest.approx(0.0))


async def test_a_rank_without_a_processor_is_awaited_and_its_time_told() -> None:
    stalls, starved = await _stalled_at(lambda now: _thread("R", 0.02 * now), 60.0)
    assert (stalls, starved) == ([], pytest.approx(0.98 * 59, rel=0.02))


async def test_a_loop_of_a_starved_rank_is_found_after_the_deadline_in_processor_time() -> None:
    stalls, _ = await _stalled_at(lambda now: _thread("R", 0.05 * now), 200.0)
    assert stalls == [pytest.approx(4.0 / 0.05, rel=0.05)]  # the first second counts whole


async def test_a_rank_that_hangs_after_some_progress_has_its_whole_deadline_from_then_on() -> None:
    stalls, _ = await _stalled_at(lambda now: _thread("R", now, barriers=min(int(now), 20)), 60.0)
    assert stalls == [pytest.approx(25.0, abs=0.5)]
