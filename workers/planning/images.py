"""The memory of image input on each rank: the features of tiles, and the tower that makes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass

from numaserve.workers.interface.images import Canvas, Grid, ImageInput
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.layers.partition import Partition, RankPart
from numaserve.workers.layers.vision import Tower
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.cost import BF16, FP32

# Images of the largest size whose features a rank holds. With one, a sequence that reads the last image would wait
# until another image is made.
_LARGEST_IMAGES = 2
# For the earlier images of several conversations: features that are found need no run of the tower. Tiles of many rows
# are fewer.
_LEAST_TILES, _ROWS = 64, 16384


@dataclass(frozen=True)
class ImageMemory:
    """Bytes for image input: of the tower's weights, which are a part of all weights, and of the rest: the tower's
    intermediate results, the features of tiles, and the pixels in the image store."""

    tower: int = 0
    runs: int = 0
    features: int = 0
    pixels: int = 0

    @property
    def besides_weights(self) -> int:
        """The memory that is not a part of the weights."""
        return self.runs + self.features + self.pixels


NO_IMAGES = ImageMemory()


def total(memories: Iterable[ImageMemory]) -> ImageMemory:
    """Return the sum of the memory of some ranks, figure by figure."""
    return ImageMemory(*map(sum, zip(*map(astuple, memories), strict=True)))


def feature_tiles(model: ModelConfig) -> int:
    """Return the tiles whose features a rank holds at a time; 0 for a model that reads no images."""
    if model.images is None:
        return 0
    least = min(_LEAST_TILES, _ROWS // model.images.rows_per_tile)
    return max(least, _LARGEST_IMAGES * largest_image(model.images))


def largest_image(images: ImageInput) -> int:
    """Return the tiles of an image of the largest size: those that it is split into, and the whole image as one."""
    sizes = images.sizes
    if isinstance(sizes, Grid):
        return 1
    if isinstance(sizes, Canvas):
        return sizes.tiles + 1 if sizes.split else 1
    side = -(-sizes.longest_edge // sizes.side)
    return side * side + 1 if sizes.split and side > 1 else 1


def image_memory(model: ModelConfig, part: RankPart, store_bytes: int) -> ImageMemory:
    """Return the memory of a rank for image input. The image store of `store_bytes`, which all ranks share, is counted
    on the first rank."""
    images, tower = model.images, model.decoder.tower
    if images is None or tower is None:
        return NO_IMAGES
    return ImageMemory(
        tower=part.weight_bytes(tower),
        runs=_run_bytes(tower, part),
        features=feature_tiles(model) * images.rows_per_tile * model.hidden_size * (1 + len(tower.deep)) * BF16,
        pixels=store_bytes if part.rank == 0 else 0,
    )


def tower_message(model: ModelConfig, partition: Partition) -> tuple[int, int]:
    """Return the rows and columns of the largest message of a rank in a run of the tower."""
    tower = model.decoder.tower
    return (0, 0) if tower is None else (tower.patches, max(map(tower.message_columns, partition.ranks)))


def _run_bytes(tower: Tower, part: RankPart) -> int:
    """Return an upper bound of a run's intermediate results, as if no two of them shared memory, and its KV cache."""
    pages = -(-tower.patches // PAGE_SIZE)
    # All layers use the same memory.
    cached = sum(block.attention.cache.page_bytes(part, "bf16") for block in tower.blocks[:1])
    return tower.patches * FP32 * (3 * tower.hidden + tower.scratch_columns(part)) + pages * cached
