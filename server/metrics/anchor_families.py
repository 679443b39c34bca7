"""The metrics of what prompts need besides cached pages to continue: snapshots, window pages and anchors."""

from numaserve.server.metrics.labels import PAGE_STATES
from numaserve.server.metrics.series import Series
from prometheus_client import Counter, Gauge


class SnapshotFamilies:
    """Counts of the snapshots of recurrent states."""

    def __init__(self, series: Series) -> None:
        self.snapshots = series.each(
            Gauge,
            "numaserve_snapshots",
            "Snapshots of recurrent states, by state. Only for a model with recurrent layers. Cached snapshots belong "
            "to cached pages, active ones to running sequences.",
            "state",
            PAGE_STATES,
        )


class WindowFamilies:
    """Counts of the pages of layers with windows."""

    def __init__(self, series: Series) -> None:
        self.pages = series.each(
            Gauge,
            "numaserve_window_pages",
            "Pages of layers with a sliding window, by state. Only where these have pages of their own. Cached pages "
            "belong to anchors alone.",
            "state",
            PAGE_STATES,
        )


class AnchorFamilies:
    """Counts of the anchors of models with recurrent states or window tables."""

    def __init__(self, series: Series) -> None:
        self.hits = series.one(
            Counter,
            "numaserve_anchor_hits_total",
            "Prompts that continued from an anchor. Only for a model with recurrent layers or windows.",
        )
        self.unanchored = series.one(
            Counter,
            "numaserve_unanchored_tokens_total",
            "Prompt tokens in cached pages that were computed again, because no anchor was at or after them. Only for "
            "a model with recurrent layers or windows.",
        )
