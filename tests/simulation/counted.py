"""Metrics that a run can afford: the real ones cost more to make than all the rest of it."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from numaserve.server.metrics.metrics import Metrics


class CountedMetrics:
    """Counts the calls of the methods of `Metrics`, and sums up the figures that must agree with each other."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.ended = 0  # sequences
        self.tokens_of_ended = 0
        self.gauges: Callable[[], None] = lambda: None

    @property
    def scheduled(self) -> int:
        """Sequences that have left the queue."""
        return self.calls["request_scheduled"]

    @property
    def tokens(self) -> int:
        """Tokens that were sampled for requests."""
        return self.calls["first_token"] + self.calls["inter_token"]

    def before_scrape(self, callback: Callable[[], None]) -> None:
        self.gauges = callback

    def request_finished(self, _reason: str, *, e2e_seconds: float) -> None:
        assert e2e_seconds >= 0
        self.ended += 1

    def output_finished(self, *, tokens: int, decode_seconds: float) -> None:
        assert decode_seconds >= 0
        self.tokens_of_ended += tokens

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not hasattr(Metrics, name):
            raise AttributeError(name)

        def count(*_arguments: Any, **_fields: Any) -> None:
            self.calls[name] += 1

        self.__dict__[name] = count
        return count
