"""The table of metrics, from the registry that /metrics shows."""

from collections.abc import Mapping

from numaserve.server.gateway.models.metrics import FleetMetrics
from numaserve.server.metrics.kv_disk_figures import DiskFigures
from numaserve.server.metrics.metrics import Metrics
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from tests.documentation.tables import code, table

_OF_ALL = {"model_name", "engine", "le"}  # told once, above the table
# Labels with a value for each worker, key or adapter.
_OF_SERVER = {"rank", "key", "adapter", "max_lora", "running_lora_adapters", "waiting_lora_adapters"}
_OF_LIBRARY = "process_"  # whose names and texts are not this project's
_SUFFIX = {"counter": "_total", "info": "_info"}


def registry() -> CollectorRegistry:
    """Return the metrics of a server with a disk tier and adapters, whose model has recurrent layers and window tables
    and reads images."""
    shown = Metrics("m")
    shown.worker(0, up=True, rss_bytes=0, misplaced_pages=0, state_bytes=0)
    shown.request_over_limit("alice")
    shown.describe(version="", model="", isa="", tp=0)
    shown.describe_cache(page_size=0, num_pages=0, dtype="", prefix_cache=True)
    shown.snapshots(free=0, cached=0, active=0)
    shown.window_pages(free=0, cached=0, active=0)
    shown.anchors(hits=0, unanchored_tokens=0)
    shown.adapters(["sql"], places=1)
    shown.kv_disk(DiskFigures())
    shown.images(found=0, computed=0, tower_seconds=0.0)
    return shown.registry


def metrics() -> str:
    """Each metric with its labels, and their values where they are words."""
    return _table(registry())


def fleet_metrics() -> str:
    """The same of a gateway's own metrics."""
    return _table(FleetMetrics(["m"]).registry)


def _table(registry: CollectorRegistry) -> str:
    ours = (metric for metric in registry.collect() if not metric.name.startswith(_OF_LIBRARY))
    return table(("metric", "kind", "meaning"), map(_row, ours))


def _row(metric: Metric) -> tuple[str, str, str]:
    values: dict[str, list[str]] = {}
    for sample in metric.samples:
        for label, value in _own_labels(sample.labels).items():
            if value not in values.setdefault(label, []):
                values[label].append(value)
    name = metric.name + _SUFFIX.get(metric.type, "") + (f"{{{','.join(values)}}}" if values else "")
    words = [code(*each) for label, each in values.items() if label not in _OF_SERVER and metric.type != "info"]
    return code(name), metric.type, ": ".join([metric.documentation.rstrip("."), *words])


def _own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {label: value for label, value in labels.items() if label not in _OF_ALL}
