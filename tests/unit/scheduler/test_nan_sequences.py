"""Sequences whose logits are not numbers: each ends alone, and leaves no page behind that others could find."""

from functools import partial

import pytest
from numaserve.server.scheduler.cache.scope import CacheScope
from scheduler_simulation import NAN_TOKEN, Service, small_service

from tests.support.scheduler_integrity import check_integrity

PAGE = 4
SHARED = [0, 1, 2, 0, 1, 2, 0, 1]  # two pages

service = partial(small_service, num_pages=32)


def found(server: Service, prompt: list[int], salt: str = "") -> int:
    """Tokens of the prompt that are in the cache."""
    return server.scheduler.kv.tree.match_prefix(CacheScope(salt=salt), prompt, len(prompt) // PAGE).depth * PAGE


@pytest.mark.parametrize("ahead", [False, True])
def test_a_sequence_without_numbers_ends_alone(ahead: bool) -> None:
    server = service(ahead)
    requests = [server.add([*SHARED, index], 9) for index in (0, NAN_TOKEN, 1)]
    server.drain()
    assert requests[1].ends == ["nan"]
    assert requests[1].received == []
    assert requests[0].is_answered and requests[2].is_answered
    check_integrity(server.scheduler)
    assert server.scheduler.stats().pages_active == 0


@pytest.mark.parametrize("ahead", [False, True])
def test_its_pages_are_not_found_again(ahead: bool) -> None:
    server = service(ahead)
    prompt = [*SHARED, NAN_TOKEN, *SHARED]
    server.add(prompt, 5)
    server.drain()
    assert found(server, prompt) == 0
    server.add(SHARED, 5)
    server.drain()
    assert found(server, prompt) == len(SHARED)
    check_integrity(server.scheduler)


def test_what_gave_others_numbers_stays_in_the_cache() -> None:
    server = service()
    server.add([*SHARED, 0, 0, 0, 0, 0], 1)
    server.drain()
    spoiled = [*SHARED, NAN_TOKEN, 0, 0, 0, 0]
    server.add(spoiled, 5)
    server.drain()
    assert found(server, spoiled) == len(SHARED)
    assert found(server, [*SHARED, 0, 0, 0, 0]) == len(SHARED) + PAGE


def test_pages_that_somebody_left_before_a_sample_are_dropped_too() -> None:
    server = service(max_step_tokens=8)
    prompt = [NAN_TOKEN, *SHARED, 0, 0, 0]
    left = server.add(prompt, 5)
    server.schedule()
    server.receive()
    server.end(left, "abort")
    assert found(server, prompt) == 8
    server.add(prompt, 5)
    server.drain()
    assert found(server, prompt) == 0


def test_other_salts_keep_what_they_have() -> None:
    server = service()
    prompt = [*SHARED, NAN_TOKEN]
    left = server.add(prompt, 5, salt="tenant")
    server.schedule()
    server.end(left, "abort")
    server.receive()
    server.add(prompt, 5)
    server.drain()
    assert (found(server, prompt), found(server, prompt, "tenant")) == (0, len(SHARED))


def test_who_holds_hidden_pages_goes_on_and_they_are_the_first_to_go() -> None:
    server = service(num_pages=8)
    spoiled = server.add([*SHARED, NAN_TOKEN], 5)
    server.schedule()
    server.add([*SHARED, 1], 12)
    server.schedule()  # finds the first one's pages before anybody knows
    server.receive()
    assert spoiled.ends == ["nan"]
    assert found(server, SHARED) == 0
    check_integrity(server.scheduler)
    server.drain()
    check_integrity(server.scheduler)
    assert server.requests[1].is_answered
    cached = server.scheduler.stats().pages_cached
    assert server.scheduler.kv.tree.evict(cached)[: cached - 1]
    assert server.scheduler.stats().pages_cached == 0


def test_a_retracted_sequence_ends_when_its_result_comes() -> None:
    server = service(ahead=True, num_pages=4)
    old = server.add([0] * 7, 8)
    server.schedule()
    young = server.add([1, 1, 1, NAN_TOKEN], 4)
    server.schedule()
    server.receive()
    server.schedule()  # both want a page now, and there is one
    assert server.scheduler.stats().retractions == 1
    server.receive()
    assert young.ends == ["nan"]
    check_integrity(server.scheduler)
    server.drain()
    assert old.is_answered
    assert found(server, young.prompt) == 0


def test_rows_of_the_prompt_that_are_no_numbers_end_a_sequence_at_once() -> None:
    server = service(max_step_tokens=8)
    request = server.add([0, 1, NAN_TOKEN, 0, 1, 2, 0, 1, 2, 0, 1], 5, prompt_logprobs=True)
    assert server.schedule()
    (update,) = server.receive()
    assert update.nan
    assert not server.scheduler.running and not server.scheduler.waiting
    assert request.rows == []
    check_integrity(server.scheduler)
