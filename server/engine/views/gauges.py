"""The scheduler's counters as metrics."""

from collections import Counter
from collections.abc import Callable, Sequence

from numaserve.server.config.option_types import DrafterName
from numaserve.server.metrics.kv_disk_figures import DiskFigures
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.scheduler import Scheduler


class Gauges:
    """Copies `scheduler.stats()` to `metrics` before each scrape.

    Setting the metrics in every step would take a tenth of the loop's work. Between two steps, which may be seconds
    apart, the metrics would miss requests that came since.
    """

    def __init__(
        self,
        metrics: Metrics,
        scheduler: Scheduler,
        drafters: Sequence[DrafterName] = (),
        disk: Callable[[], DiskFigures] | None = None,
    ) -> None:
        """`disk` returns the figures of the disk tier; None: there is none."""
        self._drafters = drafters
        self._metrics = metrics
        self._scheduler = scheduler
        self._disk = disk
        self._queries = self._hits = self._retractions = 0  # reported so far
        self._drafted: Counter[tuple[str, bool]] = Counter()
        self._anchor_hits = self._unanchored_tokens = 0
        self._feature_hits = self._tower_runs = 0
        self._tower_s = 0.0
        # Before the first scrape: a metric that is added during a scrape is not in it.
        self._set_anchors()
        self._set_images()
        self._set_disk()

    def describe_cache(self, dtype: str) -> None:
        """Report the layout of the KV cache, whose numbers have type `dtype`."""
        config = self._scheduler.config
        self._metrics.describe_cache(
            page_size=config.page_size,
            num_pages=config.capacity.num_pages,
            dtype=dtype,
            prefix_cache=config.enable_prefix_cache,
        )

    def set(self) -> None:
        """Set the gauges and add to the counters."""
        stats = self._scheduler.stats()
        self._metrics.requests(waiting=stats.waiting, running=stats.running)
        self._metrics.pages(free=stats.pages_free, cached=stats.pages_cached, active=stats.pages_active)
        queries, hits = stats.prefix_query_tokens, stats.prefix_hit_tokens
        self._metrics.prefix_cache(queried_tokens=queries - self._queries, hit_tokens=hits - self._hits)
        self._metrics.retracted(stats.retractions - self._retractions)
        self._queries, self._hits, self._retractions = queries, hits, stats.retractions
        self._set_drafted()
        self._set_anchors()
        self._set_images()
        self._set_disk()

    def _set_disk(self) -> None:
        if self._disk is not None:
            self._metrics.kv_disk(self._disk())

    def _set_drafted(self) -> None:
        drafted = self._scheduler.drafted.copy()
        for name in self._drafters:
            accepted, rejected = (drafted[name, right] - self._drafted[name, right] for right in (True, False))
            self._metrics.drafted(name, accepted=accepted, rejected=rejected)
        self._drafted = drafted

    def _set_anchors(self) -> None:
        snapshots, windows = self._scheduler.snapshot_stats(), self._scheduler.kv.window_stats()
        if snapshots is not None:
            self._metrics.snapshots(free=snapshots.free, cached=snapshots.cached, active=snapshots.active)
        if windows is not None:
            self._metrics.window_pages(free=windows.free, cached=windows.cached, active=windows.active)
        stats = self._scheduler.kv.anchor_stats()
        if stats is not None:
            hits, tokens = stats.hits - self._anchor_hits, stats.unanchored_tokens - self._unanchored_tokens
            self._metrics.anchors(hits=hits, unanchored_tokens=tokens)
            self._anchor_hits, self._unanchored_tokens = stats.hits, stats.unanchored_tokens

    def _set_images(self) -> None:
        features, seconds = self._scheduler.features, self._scheduler.step_costs.tower_s
        if self._scheduler.config.capacity.feature_tiles:
            self._metrics.images(
                found=features.hits - self._feature_hits,
                computed=features.runs - self._tower_runs,
                tower_seconds=seconds - self._tower_s,
            )
            self._feature_hits, self._tower_runs, self._tower_s = features.hits, features.runs, seconds
