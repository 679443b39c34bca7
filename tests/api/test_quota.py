"""What is left of a key's limits, as time passes that the tests decide about."""

import pytest
from numaserve.server.http.auth.quota import KeyLimits, OverLimit, Quota, duration


class Passing:
    """A clock that stands still unless it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Request:
    """A request whose tokens a test decides."""

    def __init__(self) -> None:
        self.tokens = 0

    def used(self) -> int:
        return self.tokens


def quota_of(clock: Passing, **limits: int) -> Quota:
    quota = Quota(clock)
    quota.change(KeyLimits(**limits))
    return quota


def ask(quota: Quota, tokens: int = 0) -> None:
    """A request that is answered at once, with so many tokens."""
    request = Request()
    use = quota.enter(request.used)
    request.tokens = tokens
    quota.leave(use)


def wait_of(quota: Quota) -> int:
    with pytest.raises(OverLimit) as caught:
        quota.enter(Request().used)
    return caught.value.retry_after


def test_without_limits_everything_is_admitted_and_nothing_told() -> None:
    quota = quota_of(Passing())
    for _ in range(1000):
        ask(quota, 1000)
    assert (quota.headers(), quota.has_rates) == ({}, False)


def test_a_minute_s_requests_may_come_at_once_and_others_as_they_are_earned() -> None:
    clock = Passing()
    quota = quota_of(clock, requests_per_minute=12)
    for _ in range(12):
        ask(quota)
    assert wait_of(quota) == 5
    clock.now += 4.9
    assert wait_of(quota) == 1
    clock.now += 0.1
    ask(quota)
    assert wait_of(quota) == 5
    clock.now += 3600
    for _ in range(12):
        ask(quota)
    assert wait_of(quota) == 5


@pytest.mark.parametrize("per_minute", [1, 7, 59, 61, 1000, 999_999_999])
def test_who_comes_back_when_told_to_is_admitted(per_minute: int) -> None:
    clock = Passing()
    tokens, requests = quota_of(clock, tokens_per_minute=per_minute), quota_of(clock, requests_per_minute=1)
    for used in (3 * per_minute, per_minute + 1, per_minute):
        ask(tokens, used)
        clock.now += wait_of(tokens)
        ask(requests)
        clock.now += wait_of(requests)


def test_a_refused_request_spends_nothing() -> None:
    clock = Passing()
    quota = quota_of(clock, requests_per_minute=1, tokens_per_minute=60, concurrent=1)
    ask(quota, 60)
    for _ in range(100):
        assert wait_of(quota) == 60
    clock.now += 60
    ask(quota)


def test_tokens_count_while_they_are_generated_not_when_the_request_ends() -> None:
    clock = Passing()
    quota = quota_of(clock, tokens_per_minute=600)
    request = Request()
    use = quota.enter(request.used)
    request.tokens = 500  # the prompt
    quota.leave(quota.enter(Request().used))
    request.tokens = 700
    assert wait_of(quota) == 11
    request.tokens = 800
    assert wait_of(quota) == 21
    quota.leave(use)
    assert wait_of(quota) == 21


def test_a_request_of_more_tokens_than_a_minute_has_is_served_and_earned_afterwards() -> None:
    clock = Passing()
    quota = quota_of(clock, tokens_per_minute=60)
    ask(quota, 240)
    assert wait_of(quota) == 181
    clock.now += 181
    ask(quota)


def test_requests_at_once_are_those_that_have_not_ended() -> None:
    quota = quota_of(Passing(), concurrent=2)
    first, _second = quota.enter(Request().used), quota.enter(Request().used)
    assert wait_of(quota) == 1
    quota.leave(first)
    quota.leave(first)
    quota.enter(Request().used)
    assert wait_of(quota) == 1


def test_the_longest_of_the_waits_is_told_and_every_limit_named() -> None:
    quota = quota_of(Passing(), requests_per_minute=1, tokens_per_minute=100, concurrent=1)
    request = Request()
    quota.enter(request.used)
    request.tokens = 200
    with pytest.raises(OverLimit) as caught:
        quota.enter(request.used)
    assert caught.value.retry_after == 61
    reached = "1 concurrent request and 1 request per minute and 100 tokens per minute"
    assert str(caught.value) == f"This API key has reached its limit: {reached}. Retry after 61 s."


def test_the_headers_tell_limit_rest_and_when_all_is_there_again() -> None:
    clock = Passing()
    quota = quota_of(clock, requests_per_minute=60, tokens_per_minute=6000)
    ask(quota, 9000)
    assert quota.headers() == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m30s",
    }
    clock.now += 89.99
    assert quota.headers()["x-ratelimit-remaining-tokens"] == "5999"
    assert quota.headers()["x-ratelimit-reset-tokens"] == "10ms"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.0121, "13ms"), (1, "1s"), (1.5, "1.5s"), (60, "1m0s"), (361.25, "6m1.25s")]
)
def test_a_time_is_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_changed_limits_keep_what_was_used() -> None:
    clock = Passing()
    quota = quota_of(clock, requests_per_minute=10, tokens_per_minute=100, concurrent=1)
    request = Request()
    use = quota.enter(request.used)
    request.tokens = 30
    quota.change(KeyLimits(requests_per_minute=20, tokens_per_minute=40, concurrent=2))
    headers = quota.headers()
    assert headers["x-ratelimit-remaining-requests"] == "19"
    assert headers["x-ratelimit-remaining-tokens"] == "10"
    quota.enter(Request().used)
    assert wait_of(quota) == 1
    quota.leave(use)


def test_a_limit_that_is_new_counts_from_now_on() -> None:
    clock = Passing()
    quota = quota_of(clock, concurrent=2)
    request = Request()
    quota.enter(request.used)
    request.tokens = 1000
    quota.change(KeyLimits(tokens_per_minute=100, concurrent=2))
    request.tokens = 1010
    assert quota.headers()["x-ratelimit-remaining-tokens"] == "90"
    quota.enter(Request().used)
    assert wait_of(quota) == 1
    quota.change(KeyLimits())
    assert quota.headers() == {}
    quota.enter(Request().used)
