"""The scheduler's counters as metrics."""

from __future__ import annotations

import time

from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.scheduler import Scheduler

# Scrapes come every few seconds; to set the gauges in every step would be a tenth of the loop's work.
_INTERVAL_S = 0.25


class Gauges:
    """Copies `scheduler.stats()` to `metrics`, now and then while busy."""

    def __init__(self, metrics: Metrics, scheduler: Scheduler) -> None:
        self._metrics = metrics
        self._scheduler = scheduler
        self._set_at = 0.0
        self._queries = self._hits = 0  # prefix cache tokens reported so far

    def set_if_due(self) -> None:
        """Set them when that was not done for a quarter of a second."""
        if time.monotonic() >= self._set_at + _INTERVAL_S:
            self.set()

    def set(self) -> None:
        """Set them."""
        self._set_at = time.monotonic()
        stats = self._scheduler.stats()
        self._metrics.requests(waiting=stats.waiting, running=stats.running)
        self._metrics.pages(free=stats.pages_free, cached=stats.pages_cached, active=stats.pages_active)
        queries, hits = stats.prefix_query_tokens, stats.prefix_hit_tokens
        self._metrics.prefix_cache(queried_tokens=queries - self._queries, hit_tokens=hits - self._hits)
        self._queries, self._hits = queries, hits
