"""The metrics of a model that reads images."""

from numaserve.server.metrics.labels import FEATURE_SOURCES, IMAGE_CODES, PIXEL_SOURCES
from numaserve.server.metrics.series import Series
from prometheus_client import Counter, Histogram

_DECODE = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0)  # seconds


class ImageFamilies:
    """Counts of images and of their tiles, and the time of decoding and of the vision tower."""

    def __init__(self, series: Series) -> None:
        self.images = series.each(
            Counter,
            "numaserve_images_total",
            "Images of requests, by the source of their pixels: found in memory, or decoded. Only for a model that "
            "reads images.",
            "pixels",
            PIXEL_SOURCES,
        )
        self.refused = series.each(
            Counter,
            "numaserve_images_refused_total",
            "Images that were refused, or replaced by a text in an earlier turn or the result of a tool, by error "
            "code. Only for a model that reads images.",
            "code",
            IMAGE_CODES,
        )
        self.decode_seconds = series.one(
            Histogram,
            "numaserve_image_decode_seconds",
            "Time to decode, resize and split an image, without waiting for a process. Only for a model that reads "
            "images.",
            buckets=_DECODE,
        )
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
