"""Runs of the vision tower in parts, next to output tokens: what streams wait for, and what ends a run."""

from collections.abc import Iterator

import pytest
from image_prompts import PAGE, ROWS, ask, learnt, service
from numaserve.server.scheduler.client import Client
from numaserve.workers.interface.protocol import StepPlan
from scheduler_simulation import RUN_NS, Request, Service, step_ns

from tests.support.scheduler_integrity import check_integrity
from tests.support.sequences import planned

PARTS = (0.2, 0.1, 0.1, 0.2, 0.1, 0.1, 0.2)
FILLED_S = 0.0016  # of the output token, and of about half a run
TARGET_S = FILLED_S / 0.8  # a fifth is the reserve for steps that take longer than predicted


def streaming(**limits: object) -> Service:
    """A server with a stream, next to which a run does not fit."""
    options: dict[str, object] = {"parts": PARTS, "target_itl_s": TARGET_S, "enable_prefix_cache": False, **limits}
    return learnt(service(**options), streams=1)  # type: ignore[arg-type]


def plans(server: Service, request: Request) -> Iterator[StepPlan]:
    """The plans until the answer of a request begins, one at a time."""
    while not (request.received or request.ends):
        plan = planned(server)
        check_integrity(server.scheduler)
        yield plan
        server.receive()


def begin(server: Service, *parts: int | str, **options: object) -> Request:
    """A request whose run has begun, and has parts left."""
    request = ask(server, *parts, **options)
    plan = planned(server)
    assert [(work.begin, 0 < work.end < len(PARTS)) for work in plan.tower or []] == [(0, True)]
    assert [seq.num_tokens for seq in plan.seqs] == [1]
    check_integrity(server.scheduler)
    return request


def share(plan: StepPlan) -> float:
    return sum(sum(PARTS[work.begin : work.end or None]) for work in plan.tower or [])


def test_streams_wait_for_no_more_parts_than_a_step_has_time_for() -> None:
    server = streaming()
    hits, runs = server.scheduler.features.hits, server.scheduler.features.runs
    request = ask(server, "cat", "dog", "cat", 3)
    sent = list(plans(server, request))
    taken = [step_ns(plan) + RUN_NS * share(plan) for plan in sent if plan.tower]
    assert max(taken) * 1e-9 < FILLED_S * 1.02
    assert len(taken) < 7  # parts of a step fill its time
    works = [work for plan in sent for work in plan.tower or []]
    assert len(works) > 2
    assert sum(map(share, sent)) == pytest.approx(2)
    assert all(any(seq.num_tokens == 1 for seq in plan.seqs) for plan in sent)
    assert (server.scheduler.features.hits, server.scheduler.features.runs) == (hits + 1, runs + 2)


@pytest.mark.parametrize("target_s", [0.0025, 0.004])
@pytest.mark.parametrize("before", range(PAGE))
def test_a_chunk_ends_before_a_run_with_which_it_would_take_too_long(target_s: float, before: int) -> None:
    server = streaming(target_itl_s=target_s)
    taken = [
        step_ns(plan) + RUN_NS * share(plan) for plan in plans(server, ask(server, before, "bird", "dog", "cat", 9))
    ]
    assert max(taken) * 1e-9 < target_s * 1.02


def test_chunks_of_a_prompt_with_images_leave_the_reserve_and_others_do_not() -> None:
    target_s = 0.004
    server = streaming(target_itl_s=target_s)
    longest = [
        max(step_ns(plan) + RUN_NS * share(plan) for plan in plans(server, ask(server, *parts))) * 1e-9
        for parts in ((20, "cat", 20), (80,))
    ]
    assert longest[0] < 0.8 * target_s * 1.02 < longest[1] < target_s * 1.02


def test_without_output_tokens_runs_are_whole_also_the_rest_of_one_that_is_begun() -> None:
    server = streaming()
    request = begin(server, "cat", 1)
    server.receive()
    server.end(server.requests[3], "abort")
    plan = next(plans(server, request))
    assert plan.tower is not None
    assert [(work.begin > 0, work.end) for work in plan.tower] == [(True, 0)]
    assert plan.seqs[0].num_tokens == ROWS + 1
    server.receive()
    server.drain()
    works = [work for plan in plans(server, ask(server, "dog", 1)) for work in plan.tower or []]
    assert [(work.begin, work.end) for work in works] == [(0, 0)]


def test_the_rest_of_a_run_needs_no_sequence_in_its_plan() -> None:
    """The stream has its last token to come, and the pages that the prompt waits for."""
    server = streaming(ahead=True, num_pages=40)
    stream = server.scheduler.running[0].position
    while len(stream.tokens) < stream.max_tokens - 1:
        server.schedule()
        server.receive()
    request = begin(server, "cat", 20)
    plan = planned(server)
    assert not plan.seqs
    assert not plan.is_empty  # else the step loop takes it for a heartbeat
    assert [work.end for work in plan.tower or []] == [0]
    check_integrity(server.scheduler)
    server.drain()
    assert request.ends == ["length"]


def test_a_step_has_one_part_at_least_and_the_first_ones_tell_what_a_run_takes() -> None:
    server = service(parts=PARTS, target_itl_s=TARGET_S)
    server.add([1] * 5, 900)
    for _ in range(20):
        server.schedule()
        server.receive()
    request = ask(server, "cat", 1)
    works = [work for plan in plans(server, request) for work in plan.tower or []]
    assert works[0].end == 1
    assert works[1].end > 2
    assert server.scheduler.step_costs.of_run(16).seconds == pytest.approx(RUN_NS * 1e-9, rel=0.1)
    server = streaming(target_itl_s=1e-6)
    works = [work for plan in plans(server, ask(server, "cat", 1)) for work in plan.tower or []]
    assert [work.begin for work in works] == list(range(len(PARTS)))


def test_one_run_is_begun_at_a_time_and_who_has_the_same_image_takes_its_features() -> None:
    server = streaming(ahead=True)
    hits, runs = server.scheduler.features.hits, server.scheduler.features.runs
    asked = [ask(server, picture, 1, client=Client(f"of the {picture}")) for picture in ("cat", "dog", "cat")]
    server.drain()  # the simulated workers check the order of parts
    assert all(request.ends == ["length"] for request in asked)
    assert (server.scheduler.features.hits, server.scheduler.features.runs) == (hits + 1, runs + 2)


def test_parts_count_as_tokens_of_their_client_by_their_share() -> None:
    server = streaming()
    counted: list[float] = []
    waiting = server.scheduler.waiting
    right = waiting.computed
    waiting.computed = lambda seq, tokens: (counted.append(tokens), right(seq, tokens))[1]  # type: ignore[method-assign]
    list(plans(server, ask(server, "cat", 2)))
    of_run = server.scheduler.step_costs.of_run(64)
    assert len(counted) > 2
    assert sum(counted) == pytest.approx(ROWS + 2 + of_run.tokens, rel=0.1)


def test_a_client_that_leaves_gives_its_run_up_and_its_pixels_live_until_the_plan_is_answered() -> None:
    server = streaming(tiles=1)
    leaver = begin(server, "cat", 1)
    assert server.scheduler.features.num_available == 0
    server.end(leaver, "abort")
    check_integrity(server.scheduler)
    assert server.scheduler.features.num_available == 1
    assert server.store.contents
    server.receive()
    assert not server.store.contents
    request = begin(server, "dog", 1)
    server.drain()
    assert request.ends == ["length"]


def test_a_sequence_that_loses_its_turn_gives_its_run_up() -> None:
    server = streaming(tiles=1)
    request = begin(server, "cat", 1)
    server.receive()
    newcomer = server.scheduler.running_set.newcomer
    server.scheduler.running_set.newcomer = lambda: None  # type: ignore[method-assign]
    plan = planned(server)
    assert not plan.tower
    assert server.scheduler.features.num_available == 1
    server.receive()
    server.scheduler.running_set.newcomer = newcomer  # type: ignore[method-assign]
    assert [work.begin for work in next(plans(server, request)).tower or []] == [0]
    server.receive()
    server.drain()
    assert request.ends == ["length"]


def test_a_failed_step_ends_the_sequence_whose_parts_it_had_and_the_next_run_begins_at_its_first_part() -> None:
    server = streaming(ahead=True)
    stream = server.requests[3]
    ended, other = begin(server, "cat", 1), ask(server, "dog", 1)
    assert server.schedule() is not None
    server.fail_step()
    check_integrity(server.scheduler)
    assert (stream.ends, ended.ends, other.ends) == (["error"], ["error"], [])
    server.receive()  # of the void plan
    server.drain()
    assert other.ends == ["length"]


def test_new_workers_begin_the_run_again() -> None:
    server = streaming()
    request = begin(server, "cat", 1)
    server.end(server.requests[3], "abort")
    server.restart_workers()
    check_integrity(server.scheduler)
    works = [work for plan in plans(server, request) for work in plan.tower or []]
    assert [(work.begin, work.end) for work in works] == [(0, 0)]


def test_the_sequence_whose_parts_kill_the_workers_is_convicted() -> None:
    server = streaming()
    others = [server.requests[3], *(server.add([2] * 5, 30) for _ in range(3))]
    for _ in range(8):
        server.schedule()
        server.receive()
    deadly = ask(server, "bird", 2)
    deaths = 0
    while not deadly.ends:
        plan = planned(server)
        if any(server.store.contents[work.tile] == deadly.tiles[0] for work in plan.tower or []):
            deaths += 1
            assert deaths > 1 or len(plan.seqs) == len(others)  # it has no position in the plan that kills first
            server.restart_workers()
        else:
            server.receive()
    assert deadly.ends == ["convicted"]
    assert deaths <= 5  # ceil(log2(5)) + 2
    server.drain()
    assert all(other.ends == ["length"] for other in others)
