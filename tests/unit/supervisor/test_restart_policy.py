"""When the supervisor gives up."""

import pytest
from numaserve.server.common.death import Cause
from numaserve.server.supervisor.policy import RestartPolicy


def test_the_third_failure_within_a_minute_is_the_last() -> None:
    policy = RestartPolicy()
    assert [policy.failed(now, was_ready=True) for now in (0, 30, 60)] == [False, False, True]


def test_failures_further_apart_are_forgiven() -> None:
    policy = RestartPolicy()
    assert not any(policy.failed(31.0 * i, was_ready=True) for i in range(20))


@pytest.mark.parametrize("cause", [Cause.REQUEST, Cause.PASSING])
def test_a_failure_that_is_explained_does_not_count(cause: Cause) -> None:
    policy = RestartPolicy()
    assert not any(policy.failed(i, was_ready=True, cause=cause) for i in range(20))
    assert [policy.failed(now, was_ready=True) for now in (30, 31, 32)] == [False, False, True]


def test_failures_before_a_step_that_was_answered_are_forgiven() -> None:
    policy = RestartPolicy()
    for second in range(0, 60, 2):
        assert not policy.failed(second, was_ready=False)
        assert not policy.failed(second + 1, was_ready=True, cause=Cause.PASSING)


def test_a_request_that_is_looked_for_forgives_nothing() -> None:
    policy = RestartPolicy()
    causes = (Cause.UNKNOWN, Cause.REQUEST) * 3
    assert [policy.failed(i, was_ready=True, cause=cause) for i, cause in enumerate(causes)].index(True) == 4


def test_three_slow_starts_in_a_row_that_fail_are_the_last() -> None:
    policy = RestartPolicy()
    assert [policy.failed(now, was_ready=False) for now in (0, 300, 600)] == [False, False, True]


def test_a_start_that_succeeds_between_is_a_new_chance() -> None:
    policy = RestartPolicy()
    ready = (False, False, True, False, False)
    assert not any(policy.failed(300.0 * i, was_ready=was) for i, was in enumerate(ready))


def test_starts_that_fail_are_tried_again_after_longer_and_longer_pauses() -> None:
    policy = RestartPolicy()
    policy.failed(0, was_ready=True)
    assert policy.pause_s == 0
    policy.failed(1, was_ready=False)
    first = policy.pause_s
    policy.failed(2, was_ready=False)
    assert 0 < first < policy.pause_s
    policy.failed(3, was_ready=True, cause=Cause.PASSING)
    assert policy.pause_s == 0


def test_workers_that_were_ready_and_died_of_what_is_explained_are_such_a_start() -> None:
    policy = RestartPolicy()
    for minute in range(0, 60, 3):
        assert not policy.failed(60.0 * minute, was_ready=False)
        assert not policy.failed(60.0 * minute + 30, was_ready=True, cause=Cause.PASSING)
