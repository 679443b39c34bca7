"""Sequences of a model with states: each goes on from a snapshot of its own states, and nothing fails without one."""

from functools import partial

import pytest
from numaserve.server.scheduler.kv_cache import KVCache
from numaserve.workers.interface.protocol import SamplingParams
from scheduler_simulation import NAN_TOKEN, Service, small_service
from served_alone import own, serve

from tests.support.plan_limits import plan_limits
from tests.support.scheduler_integrity import check_integrity
from tests.support.sequences import sequence

PAGE = 4
SHARED = list(range(10, 26))  # four pages

service = partial(small_service, num_snapshots=8)


def free(server: Service) -> int:
    stats = server.scheduler.snapshot_stats()
    assert stats is not None
    return stats.free


def test_a_prompt_goes_on_half_a_page_before_the_end_of_another() -> None:
    server = service()
    assert serve(server, SHARED + own(1, 5)) == 0
    assert serve(server, SHARED + own(1, 3) + own(2)) == 16
    assert serve(server, SHARED + own(1, 5)) == 16


@pytest.mark.parametrize("ahead", [False, True])
def test_the_next_turn_goes_on_at_the_end_of_the_output(ahead: bool) -> None:
    server = service(ahead)
    assert serve(server, SHARED, max_new_tokens=9) == 0
    answer = server.requests[0].received
    assert serve(server, [*SHARED, *answer, *own(1)]) == 24


def test_a_prefix_has_an_anchor_once_two_prompts_have_shared_it() -> None:
    server = service()
    assert [serve(server, SHARED + own(number)) for number in range(1, 5)] == [0, 0, 16, 16]
    stats = server.scheduler.kv.anchor_stats()
    assert stats is not None
    assert (stats.hits, stats.unanchored_tokens, server.scheduler.stats().prefix_hit_tokens) == (2, 16, 32)


def test_one_page_more_than_the_anchor_has_is_not_worth_another() -> None:
    server = service()
    serve(server, SHARED + own(1, 5))
    before = free(server)
    assert serve(server, SHARED + own(1, 4) + own(2, 1)) == 16
    assert free(server) == before


def test_long_prompts_have_marks_while_snapshots_are_free() -> None:
    server = service(tokens_between_marks=8, num_snapshots=2)
    serve(server, [*SHARED, *own(1)])
    assert free(server) == 0
    assert serve(server, SHARED[:10] + own(2)) == 8
    assert serve(server, SHARED[:10] + own(3)) == 8


def test_without_a_snapshot_a_mark_is_left_out() -> None:
    server = service(num_snapshots=1)
    requests = [server.add(own(number), 20) for number in range(1, 4)]
    server.drain()
    assert all(request.is_answered for request in requests)
    check_integrity(server.scheduler)


def test_each_salt_has_anchors_of_its_own() -> None:
    server = service()
    assert [serve(server, SHARED, salt=salt) for salt in ("", "tenant", "", "tenant")] == [0, 0, 12, 12]


@pytest.mark.parametrize("ahead", [False, True])
def test_what_an_aborted_sequence_was_about_to_store_is_found(ahead: bool) -> None:
    server = service(ahead)
    left = server.add(SHARED, 9)
    server.schedule()
    server.end(left, "abort")
    following = server.add(SHARED, 9)
    server.drain()
    assert following.is_answered
    assert server.scheduler.kv.hit_tokens == 12


def test_states_after_a_token_that_is_not_known_are_found_by_nobody() -> None:
    server = service(ahead=True)
    left = server.add(SHARED[:5], 9)
    server.schedule()
    for _ in range(2):
        server.schedule()
        server.receive()
    server.schedule()  # ends the second page, with a token that is not known
    server.end(left, "abort")
    server.drain()
    check_integrity(server.scheduler)
    assert free(server) == 8
    assert serve(server, [*left.tokens[:8], *own(1)]) == 0


def test_a_mark_after_pages_that_others_have_too_is_found_later() -> None:
    server = service()
    serve(server, SHARED + own(1))
    assert serve(server, SHARED + own(2)) == 0  # computes the shared pages again, and others after them
    assert serve(server, [*SHARED, *own(2), *own(3)]) == 20


def test_states_of_another_token_do_not_outlive_the_sequence_that_rewinds() -> None:
    server = service(drafts=True)
    assert serve(server, [0, 1, 2, 0, 1], max_new_tokens=40) == 0
    truth = server.requests[0].tokens
    for end in range(9, 45):
        assert serve(server, [*truth[:end], *own(end)]) is not None


def test_a_page_that_is_evicted_frees_its_snapshot() -> None:
    server = service(num_pages=8)
    serve(server, own(1, 20))
    assert free(server) == 7
    serve(server, own(2, 28))
    assert free(server) == 7
    assert server.scheduler.flush_cache()
    assert free(server) == 8


def test_the_anchor_that_was_not_used_for_longest_loses_its_snapshot() -> None:
    server = service(num_snapshots=3)
    prompts = [own(number) for number in range(1, 5)]
    assert [serve(server, each) for each in prompts[:3]] == [0, 0, 0]
    assert serve(server, prompts[0]) == 4
    serve(server, prompts[3])
    assert [serve(server, each) for each in (prompts[0], prompts[2], prompts[1])] == [4, 4, 0]


def test_states_that_gave_no_numbers_do_not_outlive_the_sequence() -> None:
    server = service()
    serve(server, SHARED + own(1))
    spoiled = [*SHARED, NAN_TOKEN, *own(2)]
    assert serve(server, spoiled) == 0  # its mark after the shared pages may hold what came of it
    assert serve(server, spoiled) == 0
    assert [serve(server, SHARED + own(number)) for number in (3, 4)] == [0, 16]
    assert serve(server, spoiled) == 16  # others have had numbers from these states


def test_a_snapshot_is_found_from_the_next_plan_on() -> None:
    cache = KVCache(plan_limits(64, 100, page_size=PAGE, num_snapshots=4))
    first, storing, finding = (sequence(str(n), SHARED + own(n), SamplingParams(), 1) for n in (1, 2, 3))
    for seq in (first, storing):
        cache.begin_step([])
        assert cache.admit(seq, 0)
        cache.state_work(seq, len(seq.tokens), 0)
        seq.position.planned(len(seq.tokens), 0, len(seq.tokens))
        cache.publish(seq)
    assert not cache.admit(finding, 0)
    cache.begin_step([])
    assert cache.admit(finding, 0)
    assert finding.cached_tokens == 16


def test_states_of_an_aborted_sequence_are_sound_once_another_has_had_numbers_from_them() -> None:
    server = service()
    left = server.add([*SHARED, 7, 8], 9)
    server.schedule()
    server.end(left, "abort")
    server.receive()
    assert serve(server, SHARED + own(1)) == 16
    assert serve(server, [*SHARED, NAN_TOKEN, *own(2)]) == 16
    assert serve(server, SHARED + own(3)) == 16


def test_a_sequence_that_was_retracted_goes_on_from_its_own_states() -> None:
    server = service(ahead=True, num_pages=9)
    requests = [server.add(own(number, 6), 20) for number in (1, 2)]
    server.drain()
    assert server.scheduler.stats().retractions
    assert all(request.is_answered for request in requests)


def test_no_snapshot_is_held_after_a_death() -> None:
    server = service(ahead=True)
    requests = [server.add(SHARED + own(number), 20) for number in (1, 2, 3)]
    for _ in range(8):
        server.schedule()
        server.receive()
    server.restart_workers()
    check_integrity(server.scheduler)
    assert free(server) == 8
    server.drain()
    assert all(request.is_answered for request in requests)
