import asyncio
from collections.abc import Coroutine
from typing import Any

from numaserve.server.supervisor.progress import ProgressWatch

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
