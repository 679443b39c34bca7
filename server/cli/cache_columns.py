"""The columns of caches and of image input in tables of memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.server.cli.tables import figure_table
from numaserve.workers.planning.images import NO_IMAGES, ImageMemory
from numaserve.workers.planning.needs import format_bytes
from rich.table import Table


@dataclass(frozen=True)
class CacheColumns:
    """The KV cache, and recurrent states and image input where a model of the table has some."""

    has_states: bool
    has_images: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The headings."""
        return ("KV cache", *(["states"] if self.has_states else []), *(["images"] if self.has_images else []))

    def sizes(self, kv_cache: int, states: int, images: ImageMemory) -> tuple[int, ...]:
        """Return the bytes of a row."""
        more = [*([states] if self.has_states else []), *([images.besides_weights] if self.has_images else [])]
        return kv_cache, *more


def image_tables(rows: Sequence[tuple[str, ImageMemory]], each: str) -> list[Table]:
    """Return a table of the memory of image input, with a row for each node or rank; none without image input."""
    if all(images == NO_IMAGES for _, images in rows):
        return []
    table = figure_table(
        "Image input", each, "tower (part of weights)", "tower runs (about)", "features", "pixels (image store)"
    )
    for name, images in rows:
        sizes = (images.tower, images.runs, images.features, images.pixels)
        table.add_row(name, *map(format_bytes, sizes))
    return [table]
