"""The limits of an API key: requests and tokens per minute, and concurrent requests."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from numaserve.server.engine.clock import Clock

_MINUTE_S = 60.0
_ROUNDING = 1e-6  # for sums of fractions: a client that returns after Retry-After is not refused again
_RETRY_S = 1  # if another request has to end first, at an unknown time


def _rate_headers(unit: str) -> tuple[str, ...]:
    return tuple(f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset"))


# OpenAI's header names. "reset" is the time until the whole limit is available again, such as "1m30s" or "12ms".
RATE_HEADERS = _rate_headers("requests") + _rate_headers("tokens")


@dataclass(frozen=True)
class KeyLimits:
    """The maximum use of a key; None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # prompt and output tokens, counted as in the `usage` of answers
    concurrent: int | None = None  # running and waiting requests


UNLIMITED = KeyLimits()


class OverLimit(Exception):
    """A request exceeds a limit; the message is meant for the client. `retry_after` is in whole seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Bucket:
    """The remainder of a limit per minute: it refills evenly up to one minute's worth, and can be overdrawn.

    Rejected: a count that is reset each minute allows twice the limit around the reset, and lets all waiting clients
    return at one moment. A list of the last minute's uses is as long as the limit is high.
    """

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._clock = clock
        self.per_minute = per_minute
        self._level, self._at = float(per_minute), clock()

    def resize(self, per_minute: int) -> None:
        """Change the limit; past use still counts."""
        self._level, self._at = self.left + (per_minute - self.per_minute), self._clock()
        self.per_minute = per_minute

    @property
    def left(self) -> float:
        """The remaining amount; negative if overdrawn."""
        earned = (self._clock() - self._at) * self.per_minute / _MINUTE_S
        return min(float(self.per_minute), self._level + earned)

    def spend(self, amount: int) -> None:
        """Subtract an amount."""
        self._level, self._at = self.left - amount, self._clock()

    def seconds_until(self, level: float) -> float:
        """Return the seconds until `level` is available if nothing more is used; 0 if it is available now."""
        missing = level - self.left
        return missing * _MINUTE_S / self.per_minute if missing > _ROUNDING else 0.0


class Use:
    """A request that counts towards limits. `used` returns its tokens so far."""

    def __init__(self, used: Callable[[], int]) -> None:
        self._used = used
        self._told = 0

    def new_tokens(self) -> int:
        """Return the tokens since the last call."""
        before, self._told = self._told, self._used()
        return self._told - before


class Quota:
    """The remainder of a key's limits.

    A request is admitted while at least one request and one token remain. Its tokens are then spent as they occur:
    prompt tokens when they are counted, output tokens as they are generated. An overdraft has to be earned back before
    the next request is admitted. The running requests bound the overdraft of a key.

    Rejected: charging `max_tokens` at admission. Clients ask for far more tokens than models generate and would wait
    for unused tokens. A request larger than a minute's tokens would never be served.

    Output tokens are read only when a decision needs them, so a stream costs the same with and without limits.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limits = UNLIMITED
        self._running: set[Use] = set()
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None

    def change(self, limits: KeyLimits) -> None:
        """Apply these limits from now on; past use still counts."""
        used = self._newly_used()
        if self._tokens is not None:
            self._tokens.spend(used)
        self._limits = limits
        self._requests = self._resized(self._requests, limits.requests_per_minute)
        self._tokens = self._resized(self._tokens, limits.tokens_per_minute)

    def enter(self, used: Callable[[], int]) -> Use:
        """Admit a request, to be ended with `leave`; `used` returns its tokens so far and never decreases.

        Raises `OverLimit`; then nothing has been spent.
        """
        self._settle()
        self._check()
        if self._requests is not None:
            self._requests.spend(1)
        use = Use(used)
        self._running.add(use)
        return use

    def leave(self, use: Use) -> None:
        """Record the end of a request."""
        self._running.discard(use)
        if self._tokens is not None:
            self._tokens.spend(use.new_tokens())

    @property
    def limits(self) -> KeyLimits:
        """The current limits."""
        return self._limits

    @property
    def has_rates(self) -> bool:
        """Whether there is a limit per minute."""
        return self._requests is not None or self._tokens is not None

    def headers(self) -> dict[str, str]:
        """Return the remainder of the limits as response headers; none without a limit."""
        self._settle()
        headers: dict[str, str] = {}
        for unit, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                headers |= zip(_rate_headers(unit), _values(bucket), strict=True)
        return headers

    def _settle(self) -> None:
        if self._tokens is not None:
            self._tokens.spend(self._newly_used())

    def _newly_used(self) -> int:
        return sum(use.new_tokens() for use in self._running)

    def _check(self) -> None:
        limits, over = self._limits, list[tuple[str, float]]()
        if limits.concurrent is not None and len(self._running) >= limits.concurrent:
            over.append((_count(limits.concurrent, "concurrent request"), _RETRY_S))
        for bucket, unit in ((self._requests, "request"), (self._tokens, "token")):
            wait = 0.0 if bucket is None else bucket.seconds_until(1.0)
            if bucket is not None and wait:
                over.append((f"{_count(bucket.per_minute, unit)} per minute", wait))
        if over:
            retry_after = max(1, math.ceil(max(wait for _, wait in over)))
            reached = " and ".join(text for text, _ in over)
            raise OverLimit(f"This API key has reached its limit: {reached}. Retry after {retry_after} s.", retry_after)

    def _resized(self, bucket: Bucket | None, per_minute: int | None) -> Bucket | None:
        if per_minute is None:
            return None
        if bucket is None:
            return Bucket(per_minute, self._clock)
        bucket.resize(per_minute)
        return bucket


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}{'s' * (number != 1)}"


def _values(bucket: Bucket) -> tuple[str, str, str]:
    left = max(0, math.floor(bucket.left + _ROUNDING))
    return str(bucket.per_minute), str(left), duration(bucket.seconds_until(bucket.per_minute))


def duration(seconds: float) -> str:
    """Return a time in OpenAI's notation, "12ms", "1.5s" or "6m0s", rounded up to milliseconds."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m" * bool(minutes) + f"{rest / 1000:g}s"
