"""Requests end when their time has passed, wherever they are."""

import asyncio
from dataclasses import replace

import pytest
from numaserve.server.engine.requests.timeouts import Timeouts
from numaserve.server.engine.types import RequestTimedOut
from test_live_requests import Run, request


def timed(seconds: float | None) -> Run:
    run = Run()
    run.stream = run.live.add([replace(request(), timeout_s=seconds)], now=0.0)
    return run


async def test_a_queued_request_whose_time_has_passed_is_in_no_plan() -> None:
    run = timed(5.0)
    run.live.timeouts.look(4.9)
    assert len(run.live) == 1
    run.live.timeouts.look(5.0)
    assert run.scheduler.schedule() is None
    with pytest.raises(RequestTimedOut):
        await anext(run.stream)
    assert (len(run.live), run.room, run.outcome("timeout"), run.outcome("error")) == (0, 1, 1, 0)
    run.live.timeouts.close()


async def test_a_request_that_runs_ends_behind_what_it_has_been_told() -> None:
    run = timed(5.0)
    run.advance(0, "a")
    run.live.timeouts.look(6.0)
    assert (await anext(run.stream)).text == "a"
    with pytest.raises(RequestTimedOut):
        await anext(run.stream)
    run.live.timeouts.close()


async def test_a_request_that_was_done_in_time_or_has_no_limit_is_left_alone() -> None:
    done, unlimited = timed(5.0), timed(None)
    done.advance(0, "a", finished=True)
    for run in (done, unlimited):
        run.live.timeouts.look(1e9)
        run.live.timeouts.close()
    assert [chunk.text async for chunk in done.stream] == ["a"]
    assert len(unlimited.live) == 1


async def test_nobody_need_plan_a_step_for_a_request_to_end() -> None:
    late: list[str] = []
    ended = asyncio.Event()

    def tell(request_ids: list[str]) -> None:
        late.extend(request_ids)
        if "last" in late:
            ended.set()

    clock = asyncio.get_running_loop().time
    timeouts = Timeouts(clock, tell)  # type: ignore[arg-type]
    timeouts.add("last", clock() + 0.03)
    timeouts.add("never", clock() + 3600)
    timeouts.add("first", clock() + 0.01)
    await ended.wait()
    assert late == ["first", "last"]
    timeouts.close()
