"""What the scheduler promises, one example each."""

from functools import partial

import pytest
from numaserve.server.scheduler.client import EVERYBODY, Client
from numaserve.server.scheduler.errors import ResultMismatch, SchedulerIntegrityError, SequenceTooLong
from numaserve.workers.interface.protocol import SeqResult, StepPlan, StepResult
from scheduler_simulation import Request, small_service

from tests.support.scheduler_integrity import check_integrity
from tests.support.sequences import planned

PAGE = 4

service = partial(small_service, num_pages=32, max_step_tokens=16, max_logit_rows=16)


def lengths(plan: StepPlan | None) -> list[int]:
    assert plan is not None
    return [max(1, len(seq.tokens)) for seq in plan.seqs]


def starts(plan: StepPlan | None) -> list[int]:
    assert plan is not None
    return [seq.start for seq in plan.seqs]


def test_decodes_and_a_prefill_chunk_share_one_step() -> None:
    server = service()
    server.add([1, 2], 5)
    server.schedule()
    server.receive()
    server.add([0] * 40, 5)
    assert lengths(server.schedule()) == [1, 15]
    server.receive()
    assert lengths(server.schedule()) == [1, 15]


def test_a_long_prefill_crosses_once_in_chunks_of_the_budget() -> None:
    server = service()
    server.add([0] * 40, 1)
    plans = []
    while server.scheduler.running or server.scheduler.waiting:
        plans.append(server.schedule())
        server.receive()
    assert [lengths(plan) for plan in plans] == [[16], [16], [8]]
    assert [plan.seqs[0].sample for plan in plans if plan] == [False, False, True]


def test_requests_are_admitted_in_order_of_arrival_up_to_the_slots() -> None:
    server = service(max_slots=2)
    for _ in range(3):
        server.add([1], 2)
    assert lengths(server.schedule()) == [1, 1]
    assert [seq.request_id for seq in server.scheduler.newly_admitted] == ["0", "1"]
    assert server.scheduler.stats().waiting == 1


def test_a_finished_prompt_is_found_in_the_cache() -> None:
    server = service()
    server.add([0] * 10, 1)
    server.drain()
    server.add([0] * 10 + [1], 1)
    assert starts(server.schedule()) == [8]
    assert server.scheduler.newly_admitted[0].cached_tokens == 8
    stats = server.scheduler.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (21, 8)


def test_generated_tokens_are_cached_for_the_next_turn() -> None:
    server = service()
    first = server.add([0] * 6, 7)
    server.drain()
    server.add([0] * 6 + first.received + [1], 1)
    assert starts(server.schedule()) == [12]


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    server = service()
    server.add([0] * 8, 1)
    server.drain()
    server.add([0] * 8, 1)
    assert starts(server.schedule()) == [4]


def test_another_salt_finds_nothing() -> None:
    server = service()
    server.add([0] * 10, 1, salt="alice")
    server.drain()
    server.add([0] * 10, 1, salt="bob")
    assert starts(server.schedule()) == [0]


def test_clients_of_one_cache_group_share_what_others_do_not_find() -> None:
    server = service()
    server.add([0] * 10, 1, client=Client("alice", cache_group="team"))
    server.drain()
    for client, found in (
        (Client("bob", cache_group="team"), 8),
        (Client("eve", cache_group="other"), 0),
        (EVERYBODY, 0),
    ):
        server.add([0] * 10, 1, client=client)
        assert starts(server.schedule()) == [found]
        server.drain()


def test_without_the_prefix_cache_nothing_is_kept() -> None:
    server = service(enable_prefix_cache=False)
    server.add([0] * 10, 1)
    server.drain()
    server.add([0] * 10, 1)
    assert starts(server.schedule()) == [0]
    stats = server.scheduler.stats()
    assert (stats.pages_cached, stats.prefix_query_tokens) == (0, 0)


def test_a_prompt_being_computed_is_shared_one_step_later() -> None:
    server = service(ahead=True)
    server.add([0] * 12, 5)
    server.add([0] * 12, 5)
    assert starts(server.schedule()) == [0]
    assert starts(server.schedule()) == [12, 8]  # before any result is in
    server.drain()


def test_a_token_in_flight_is_planned_by_reference() -> None:
    server = service(ahead=True)
    server.add([1, 2], 3)
    server.schedule()
    plan = planned(server)
    assert (plan.seqs[0].from_previous, plan.seqs[0].tokens, plan.seqs[0].start) == (True, [], 2)
    assert server.scheduler.schedule() is None  # two in flight are enough


def test_nothing_is_planned_past_the_length_limit() -> None:
    server = service(ahead=True)
    request = server.add([1, 2], 2)
    assert server.schedule() is not None
    assert server.schedule() is not None
    server.receive()
    assert server.schedule() is None
    server.receive()
    assert request.is_answered


def test_the_context_length_ends_a_sequence() -> None:
    server = service(context_length=9)
    request = server.add([0] * 6, 50)
    server.drain()
    assert len(request.received) == 3
    assert request.ends == ["length"]


def test_a_stop_found_late_drops_the_surplus_result() -> None:
    server = service(ahead=True)
    request = server.add([1, 2], 9, stop_after=1)
    server.schedule()
    server.schedule()
    server.receive()
    assert request.ends == ["stop"]
    assert server.scheduler.stats().pages_active == 0
    assert server.receive() == []
    assert request.received == request.tokens[2:3]


def test_pages_of_an_aborted_request_are_free_at_once_and_safe_to_reuse() -> None:
    server = service(ahead=True, num_pages=4)
    aborted = server.add([0] * 6, 9)
    server.schedule()
    server.schedule()
    server.end(aborted, "abort")
    check_integrity(server.scheduler)
    assert server.scheduler.stats().pages_active == 0
    other = server.add([1] * 13, 3)
    server.drain()
    assert other.is_answered


def test_admission_leaves_a_page_for_each_running_sequence_to_grow() -> None:
    server = service(num_pages=4)
    server.add([0] * 4, 9)
    server.add([1] * 8, 1)
    server.add([2] * 4, 1)
    assert lengths(server.schedule()) == [4, 8]
    server.receive()
    assert lengths(server.schedule()) == [1, 4]


def test_the_youngest_is_retracted_when_pages_run_out_and_loses_nothing() -> None:
    server = service(num_pages=6)
    old = server.add([0] * 7, 12)
    young = server.add([1] * 7, 12)
    server.drain()
    assert server.scheduler.stats().retractions > 0
    assert old.is_answered
    assert young.is_answered


def test_a_retracted_request_with_penalties_gets_its_history_back() -> None:
    server = service(num_pages=6)
    server.add([0] * 7, 12)
    young = server.add([1] * 7, 12, penalties=True)
    server.drain()  # the simulated worker compares the histories with the truth
    assert server.scheduler.stats().retractions > 0
    assert young.is_answered


def test_a_sample_in_flight_survives_a_retraction() -> None:
    server = service(ahead=True, num_pages=6)
    server.add([0] * 7, 12)
    young = server.add([1] * 7, 12)
    while not server.scheduler.stats().retractions:
        server.schedule()
        if len(server.sent) == 2:
            before = list(young.received)
            server.receive()
    server.drain()
    assert young.is_answered
    assert young.received[: len(before)] == before


def test_a_retracted_request_waits_for_its_sample_in_flight() -> None:
    server = service(ahead=True, num_pages=4)
    old = server.add([0] * 8, 2)
    young = server.add([1] * 3, 9)
    server.schedule()
    server.schedule()
    server.receive()
    assert server.schedule() is None  # `old` awaits its last token, `young` finds no page and is retracted
    assert server.scheduler.stats().retractions == 1
    server.end(old, "abort")
    assert server.schedule() is None  # now there is room, but the newest token of `young` is not known yet
    server.receive()
    assert starts(server.schedule()) == [4]  # its first page was kept
    server.drain()
    assert young.is_answered


def test_prompt_logprobs_are_computed_in_full_within_the_row_limit() -> None:
    server = service(max_logit_rows=5)
    server.add([0] * 14, 1)
    server.drain()
    echo = server.add([0] * 14, 0, prompt_logprobs=True)
    assert lengths(server.schedule()) == [5]
    server.drain()
    assert echo.rows == [0] * 13
    assert (echo.received, echo.ends) == ([], ["length"])


@pytest.mark.parametrize(
    ("prompt", "max_new_tokens", "limits"),
    [([0] * 100, 1, {}), ([0] * 101, 0, {}), ([0] * 32, 1, {"num_pages": 8}), ([], 1, {})],
)
def test_a_prompt_that_can_never_fit_is_refused(prompt: list[int], max_new_tokens: int, limits: dict[str, int]) -> None:
    server = service(**limits)
    request = Request(0, prompt or [0], max_new_tokens).sequence()
    request.prompt_len = len(prompt)
    with pytest.raises(SequenceTooLong, match="this server accepts 1 to"):
        server.scheduler.add(request)
    assert not server.scheduler.running and not server.scheduler.waiting


def test_an_id_in_use_is_refused() -> None:
    server = service()
    request = server.add([1], 1)
    with pytest.raises(ValueError, match="in use"):
        server.scheduler.add(request.sequence())


def test_prompt_logprobs_lost_in_a_restart_are_computed_again_and_others_are_not() -> None:
    server = service(ahead=True, max_logit_rows=4)
    echo = server.add([0] * 30, 3, prompt_logprobs=True)
    other = server.add([1, 2], 3)
    for _ in range(3):
        server.schedule()
        if len(server.sent) == 2:
            server.receive()
    assert len(echo.rows) == 8
    server.restart_workers()
    assert lengths(server.schedule()) == [8, 2]  # no rows for the echo yet
    assert lengths(server.schedule()) == [1, 3]  # which then takes all that the other's token leaves
    server.drain()
    assert echo.rows == [0] * 29
    assert echo.is_answered
    assert other.is_answered


def test_restarted_workers_resume_every_request_from_its_tokens() -> None:
    server = service(ahead=True)
    requests = [server.add([token] * 9, 6) for token in range(3)]
    for _ in range(4):
        server.schedule()
        if len(server.sent) == 2:
            server.receive()
    server.restart_workers()
    assert server.scheduler.stats().pages_free == 32
    server.drain()
    assert all(request.is_answered for request in requests)


def test_a_failed_step_ends_its_requests_and_spares_the_others() -> None:
    server = service(ahead=True, max_step_tokens=9)
    failing = server.add([0] * 9, 3)
    sharing = server.add([0] * 9 + [1], 3)
    server.schedule()
    assert starts(server.schedule()) == [9, 8]  # reads what the failing step was to write
    server.fail_step()
    assert failing.ends == ["error"]
    server.drain()
    assert sharing.is_answered


def test_a_failure_of_a_step_not_in_flight_ends_nobody() -> None:
    server = service()
    server.add([1], 2)
    server.schedule()
    assert server.scheduler.fail_step(7) == []


def test_the_cache_is_flushed_only_when_nothing_runs() -> None:
    server = service()
    server.add([0] * 9, 2)
    server.schedule()
    assert not server.scheduler.flush_cache()
    server.drain()
    assert server.scheduler.stats().pages_cached == 2
    assert server.scheduler.flush_cache()
    assert server.scheduler.stats().pages_free == 32


def test_the_cold_end_of_the_cache_makes_room() -> None:
    server = service(num_pages=6)
    for token in range(2):
        server.add([token] * 9, 1)
        server.drain()
    server.add([2] * 9, 1)
    server.drain()
    server.add([1] * 9, 1)  # used later than the zeros: still there
    assert starts(server.schedule()) == [8]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (StepResult(1, 0, [SeqResult(token=1)], 0, 0, 0), "received the result of step 1 instead of step 0"),
        (StepResult(0, 0, [], 0, 0, 0), "the result of step 0 has 0 sequences instead of 1"),
        (StepResult(0, 0, [SeqResult()], 0, 0, 0), "does not match the plan"),
    ],
)
def test_a_result_that_does_not_answer_the_plan_is_refused(result: StepResult, said: str) -> None:
    server = service()
    server.add([1], 2)
    server.schedule()
    with pytest.raises(ResultMismatch, match=said):
        server.scheduler.apply(result)
    server.receive()
    check_integrity(server.scheduler)


def test_a_lost_page_is_noticed() -> None:
    server = service()
    server.scheduler.kv.allocator.allocate(1)
    with pytest.raises(SchedulerIntegrityError, match="not in one place"):
        check_integrity(server.scheduler)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="num_pages must be at least 1"):
        service(num_pages=0)
