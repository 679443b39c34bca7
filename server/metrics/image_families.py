"""The metrics of a model that reads images."""

from numaserve.server.metrics.labels import FEATURE_SOURCES
from numaserve.server.metrics.series import Series
from prometheus_client import Counter


class ImageFamilies:
    """Counts of the tiles of images, and the time of the vision tower."""

    def __init__(self, series: Series) -> None:
        self.tiles = series.each(
            Counter,
            "numaserve_image_tiles_total",
            "Tiles of images in prompts, by the source of their features: found in memory, or computed by the vision "
            "tower. Tiles in cached pages do not count. Only for a model that reads images.",
            "features",
            FEATURE_SOURCES,
        )
        self.tower_seconds = series.one(
            Counter,
            "numaserve_vision_tower_seconds_total",
            "Time of the vision tower in steps. Only for a model that reads images.",
        )
