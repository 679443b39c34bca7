"""A call before each scrape."""

from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class BeforeScrape(Collector):
    """A collector that calls back before each scrape, and has no metrics of its own."""

    callback: Callable[[], None] | None = None

    def collect(self) -> Iterable[Metric]:
        """Call back, and return no metrics."""
        if self.callback is not None:
            self.callback()
        return ()
